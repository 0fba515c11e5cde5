"""The OpenCL kernels that come with LLMPerf, in a wheel and in a checkout's ``kernels/``.

Owns the location, the descriptions and the copying of these kernels. Imports no large library.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmperf.exits import CommandError, Exit
from llmperf_common.files.outputs import OutputTaken, is_folder
from llmperf_common.files.replacing import replacing

_PACKAGE = Path(__file__).resolve().parent
_PLACES = (_PACKAGE / "kernels", _PACKAGE.parent / "kernels")
"""Folder of the kernels in an installed wheel, and in a checkout."""
_KNOWN = "saxpy.cl"
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKernel:
    """One kernel: its name, its file name, its number of NDRange dimensions, its description."""

    name: str
    file: str
    dims: int
    description: str


def kernels_folder() -> Path:
    """Return the folder of LLMPerf's kernels: ``.cl`` sources, a ``.toml`` file for each, a README.

    Raises:
        CommandError: This installation has no kernels.
    """
    found = next((place for place in _PLACES if (place / _KNOWN).is_file()), None)
    if found is None:
        what = (
            f"{_PLACES[0]}: this installation has no kernels: install llmperf again, from a wheel"
        )
        raise CommandError(Exit.BAD_INPUT, what)
    return found


def own_kernels() -> Iterator[OwnKernel]:
    """Yield LLMPerf's kernels in the order of their files."""
    for side in sorted(kernels_folder().glob("*.toml")):
        for kernel in tomllib.loads(side.read_text("utf-8"))["kernel"]:
            yield OwnKernel(
                name=kernel["name"],
                file=f"{side.stem}.cl",
                dims=kernel["dims"],
                description=kernel["description"],
            )


def copy_kernels(out: Path) -> int:
    """Copy the kernels folder to ``out`` and return the number of sources.

    Files with the same content may already exist in ``out``.

    Raises:
        OutputTaken: A file with one of the names has other content; nothing was copied.
        OSError: ``out`` cannot be written.
    """
    is_folder(out, "--copy")
    sources = [path for path in sorted(kernels_folder().iterdir()) if path.is_file()]
    taken = [one.name for one in sources if not _is_free(out / one.name, one)]
    if taken:
        shown = ", ".join(taken[:_SHOWN]) + (", …" if len(taken) > _SHOWN else "")
        raise OutputTaken(
            f"--copy {out} holds other files under the names {shown}: name another folder, or "
            "remove these files first"
        )
    out.mkdir(parents=True, exist_ok=True)
    for source in (one for one in sources if not (out / one.name).exists()):
        with replacing(out / source.name) as partial:
            partial.write_bytes(source.read_bytes())
    return sum(source.suffix == ".cl" for source in sources)


def _is_free(target: Path, source: Path) -> bool:
    if not target.exists() and not target.is_symlink():
        return True
    return target.is_file() and target.read_bytes() == source.read_bytes()
