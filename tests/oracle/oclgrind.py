"""Runs one launch under Oclgrind and reads its reports.

Owns the simulation file and the process. ``oclgrind-kernel`` brings its own compiler and memory model and
no OpenCL platform, so it meets neither PoCL nor this environment's loader.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmperf_common.records import Argument, ArgumentKind
from tests.support.truth.side_files import Launch

PROGRAM = "oclgrind-kernel"
RUN_SECONDS = 120
# Without it Oclgrind's own compiler drops loads whose value it does not need.
BUILD_OPTIONS = "-cl-opt-disable"
_OUT_OF_BOUNDS = re.compile(r"^Invalid (?:read|write) of size \d+ at \w+ memory", re.MULTILINE)
_DTYPES = {
    "bool": "uint8",
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "size_t": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
}


class OracleError(Exception):
    """Oclgrind could not run the launch, or reported something else than an access out of bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One kernel as Oclgrind needs it."""

    source: Path
    name: str
    arguments: tuple[Argument, ...]


def is_installed() -> bool:
    """Whether the simulator is on the path."""
    return shutil.which(PROGRAM) is not None


def version() -> str:
    """Return the simulator's name and version, for the record."""
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if line.strip())


def out_of_bounds(
    program: Program, launch: Launch, elements: Mapping[int, int], *, seed: int
) -> str:
    """Run one launch and return the first access out of bounds, "" if there is none.

    Args:
        program: the kernel.
        launch: its NDRange and integer scalars.
        elements: how long each pointer argument is, by position; 0 passes a null pointer.
        seed: of the buffers' contents: integers in [0, 16), floats in [0, 1).

    Raises:
        OracleError: The launch did not run to its end, or something else was reported.
    """
    with tempfile.TemporaryDirectory(prefix="oclgrind-") as folder:
        shutil.copyfile(program.source, Path(folder) / "kernel.cl")
        file = Path(folder) / "launch.sim"
        file.write_text(_simulation(program, launch, elements, seed), encoding="utf-8")
        process = subprocess.Popen(
            [PROGRAM, "--build-options", BUILD_OPTIONS, "--max-errors", "1", "--num-threads", "1", file.name],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        return _first_report(program.name, process)


def _first_report(name: str, process: subprocess.Popen[str]) -> str:
    """Read until the first report and end the process there: what it loads next may be a loop's bound."""
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(RUN_SECONDS, end)
    timer.start()
    text = ""
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            text += line
            found = _OUT_OF_BOUNDS.search(text)
            if found is not None and not line.strip():
                process.kill()
                break
        timer.cancel()
    found = _OUT_OF_BOUNDS.search(text)
    if found is not None:
        return text[found.start() :].strip()
    if late.is_set():
        raise OracleError(f"{name}: no end within {RUN_SECONDS} s")
    if process.returncode != 0 or text.strip():
        raise OracleError(f"{name}: exit status {process.returncode}\n{text.strip()[:2000]}")
    return ""


def _simulation(program: Program, launch: Launch, elements: Mapping[int, int], seed: int) -> str:
    lines = ["kernel.cl", program.name, _triple(launch.global_size), _triple(launch.local_size)]
    for argument in program.arguments:
        if argument.kind is ArgumentKind.SCALAR:
            values = _scalar_bytes(argument, launch.scalars.get(argument.name))
            lines.append(_initialised(values))
        elif argument.kind is ArgumentKind.LOCAL_BUFFER:
            lines.append(f"<size={elements[argument.position] * argument.element_bytes} uchar>")
        elif elements[argument.position] == 0:
            lines.append("<null uchar>")
        else:
            rng = np.random.default_rng((seed, argument.position))
            lines.append(_initialised(contents(argument, elements[argument.position], rng)))
    return "\n".join(lines) + "\n"


def _triple(size: Sequence[int]) -> str:
    return " ".join(str(one) for one in (*size, 1, 1)[:3])


def _initialised(values: npt.NDArray[np.uint8]) -> str:
    return f"<size={len(values)} uchar>\n" + " ".join(map(str, values.tolist()))


def _scalar_bytes(argument: Argument, value: int | None) -> npt.NDArray[np.uint8]:
    number = np.array([1.0 if value is None else value], dtype=_DTYPES[argument.scalar_type])
    return number.view(np.uint8)


def contents(
    argument: Argument, num_elements: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Fill a buffer: integers in [0, 16), floats in [0, 1); a structure member by member."""
    data = np.zeros((num_elements, argument.element_bytes), dtype=np.uint8)
    if not argument.leaves:
        width = np.dtype(_DTYPES[argument.scalar_type]).itemsize
        count = argument.element_bytes // width
        data[:] = _values(argument.scalar_type, (num_elements, count), rng)
    for leaf in argument.leaves:
        block = _values(leaf.scalar_type, (num_elements, leaf.count), rng)
        data[:, leaf.offset_bytes : leaf.offset_bytes + block.shape[1]] = block
    return data.reshape(-1)


def _values(
    scalar_type: str, shape: tuple[int, int], rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    dtype = np.dtype(_DTYPES[scalar_type])
    drawn = rng.random(shape) if dtype.kind == "f" else rng.integers(0, 16, shape)
    return np.ascontiguousarray(drawn.astype(dtype)).view(np.uint8)
