"""Find the ``.cl`` files of a source path and read them, whatever is wrong with them.

Owns the walk over folders and the decoding. Does not own what the text means: ``signature.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.ids import sha256_hex

EXTENSION = ".cl"
MAX_SOURCE_BYTES = 8 * 2**20
"""A larger file is no kernel anybody wrote; parsing it would take minutes."""


class CorpusError(ValueError):
    """A corpus that cannot be read or written; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file as found. ``text`` is None, with the ``problem``, where it is no UTF-8 text."""

    path: str
    suite: str
    sha256: str
    text: str | None
    problem: str


def find_files(source: Path, suite: str | None) -> list[SourceFile]:
    """Read one SRC of the command line: a file, or every ``.cl`` file below a folder.

    Symbolic links are followed, each folder once; names that begin with a dot are left out.

    Raises:
        CorpusError: The path is missing, no file or folder, unreadable, or has no ``.cl`` file.
    """
    if source.is_file():
        name = suite or source.resolve().parent.name
        return [_read(source, source.name, name, alone=True)]
    if not source.is_dir():
        what = "is neither a file nor a folder" if source.exists() else "does not exist"
        raise CorpusError(f"{source} {what}: name an OpenCL source, a folder of them or a corpus")
    name = suite or source.resolve().name
    try:
        paths = sorted(_walk(source, set()))
    except OSError as error:
        raise CorpusError(f"{source}: cannot list the folder: {error.strerror}") from None
    if not paths:
        raise CorpusError(
            f"{source} has no {EXTENSION} file in it or below it: name a folder of OpenCL sources"
        )
    return [_read(path, path.relative_to(source).as_posix(), name, alone=False) for path in paths]


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        if path.is_dir():
            yield from _walk(path, seen)
        elif path.suffix.lower() == EXTENSION:
            yield path


def _read(path: Path, relative: str, suite: str, *, alone: bool) -> SourceFile:
    raw, text, problem = b"", None, ""
    try:
        raw = path.read_bytes()
    except OSError as error:
        if alone:
            raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
        problem = f"the file cannot be read: {error.strerror}"
    else:
        text, problem = _decode(raw)
        if alone and text is None:
            raise CorpusError(
                f"{path}: {problem}: name an OpenCL source, a folder of them or a corpus"
            )
    return SourceFile(
        path=relative, suite=suite, sha256=sha256_hex(raw), text=text, problem=problem
    )


def _decode(raw: bytes) -> tuple[str | None, str]:
    if len(raw) > MAX_SOURCE_BYTES:
        return None, f"the file has {len(raw)} bytes, more than {MAX_SOURCE_BYTES}"
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return None, f"the file is not UTF-8: {error.reason} at byte {error.start}"
    if "\0" in text:
        return None, f"the file has a NUL byte at character {text.index(chr(0))}: not a text"
    return text, ""
