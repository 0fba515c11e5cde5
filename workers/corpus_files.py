"""Find the ``.cl`` files of a folder and read them, whatever is wrong with them.

Owns what a source file is, its decoding, and the walk over folders. Archives: ``corpus_archives.py``; git:
``corpus_git.py``; which of them a path is: ``corpus_sources.py``. Does not own what a text means: ``signature.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

EXTENSION = ".cl"
MAX_SOURCE_BYTES = 8 * 2**20
"""A larger file is no kernel anybody wrote; parsing it would take minutes."""
MAX_MEMBERS = 200_000
"""Files of any kind in one archive or git tree: more is an attack, or not a corpus."""
MAX_TEXT_BYTES = 512 * 2**20
"""Source text taken from one archive or git tree: all of it is held in memory."""
MAX_INCLUDED_BYTES = 256 * 1024
"""Of one header; a longer one is not included."""
_HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".clh", ".hcl", ".inc", ".def"})
_CHUNK_BYTES = 1 << 20


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """What one SRC holds: its files, and entries that were not read with the reason.

    ``header`` returns the text of another file in it, by path, that a source includes; None where there is none.
    """

    files: tuple[SourceFile, ...]
    skipped: tuple[tuple[str, str], ...]
    header: Callable[[str], str | None]


def is_source_name(name: str) -> bool:
    """Whether a path inside a source names a ``.cl`` file that is not hidden.

    >>> [is_source_name(name) for name in ("a/b.cl", "./a.CL", ".git/a.cl", "a.h")]
    [True, True, False, False]
    """
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return path.suffix.lower() == EXTENSION and not hidden


def is_header_name(name: str) -> bool:
    """Whether a path inside an archive or repository names what sources include, other sources aside."""
    return PurePosixPath(name).suffix.lower() in _HEADER_SUFFIXES


def recorded_path(name: str) -> str:
    """Return a path as it is stored: normal, and valid Unicode whatever its bytes were."""
    plain = PurePosixPath(name).as_posix()
    return plain.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_source(read: Callable[[int], bytes], *, path: str, suite: str) -> SourceFile:
    """Read one file; never more than ``MAX_SOURCE_BYTES`` of it are held.

    Args:
        read: returns up to so many next bytes, none at the end.
        path: where it was found, inside its source.
        suite: of its kernels.
    """
    raw = read(MAX_SOURCE_BYTES + 1)
    digest = hashlib.sha256(raw)
    if len(raw) <= MAX_SOURCE_BYTES:
        text, problem = _decode(raw)
    else:
        num_bytes = len(raw)
        while piece := read(_CHUNK_BYTES):
            digest.update(piece)
            num_bytes += len(piece)
        text, problem = None, f"the file has {num_bytes} bytes, more than {MAX_SOURCE_BYTES}"
    return SourceFile(
        path=recorded_path(path),
        suite=suite,
        sha256=digest.hexdigest(),
        text=text,
        problem=problem,
    )


def read_alone(source: Path, suite: str | None) -> FoundFiles:
    """Read a file that was named itself: here a file that is no text is an error.

    Raises:
        CorpusError: It cannot be read, or is no text.
    """
    try:
        with source.open("rb") as stream:
            found = read_source(
                stream.read, path=source.name, suite=suite or source.resolve().parent.name
            )
    except OSError as error:
        raise CorpusError(f"{source}: cannot be read: {error.strerror}") from None
    if found.text is None:
        raise CorpusError(
            f"{source}: {found.problem}: name an OpenCL source, a folder or archive of them, or a corpus"
        )
    return FoundFiles(files=(found,), skipped=(), header=_headers_below(source.parent))


def read_folder(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file below a folder.

    Symbolic links are followed, each folder once; names that begin with a dot are left out.

    Raises:
        CorpusError: It cannot be listed, or has no ``.cl`` file.
    """
    name = suite or source.resolve().name
    try:
        paths = sorted(_walk(source, set()))
    except OSError as error:
        raise CorpusError(f"{source}: cannot list the folder: {error.strerror}") from None
    files, skipped = [], []
    for path in paths:
        relative = path.relative_to(source).as_posix()
        if path.exists() and not path.is_file():
            skipped.append((recorded_path(relative), "neither a file nor a folder"))
        else:
            files.append(_read_one(path, relative, name))
    if not paths:
        raise CorpusError(
            f"{source} has no {EXTENSION} file in it or below it: name a folder of OpenCL sources"
        )
    return FoundFiles(files=tuple(files), skipped=tuple(skipped), header=_headers_below(source))


def _headers_below(folder: Path) -> Callable[[str], str | None]:
    """Return a look-up of headers by path below ``folder``; a link out of it finds nothing."""
    root = folder.resolve()

    @cache
    def look_up(name: str) -> str | None:
        try:
            path = (root / name).resolve()
            if not path.is_relative_to(root) or not path.is_file():
                return None
            with path.open("rb") as stream:
                return header_text(stream.read(MAX_INCLUDED_BYTES + 1))
        except (OSError, ValueError):
            return None

    return look_up


def header_text(raw: bytes) -> str | None:
    """Return the text of a header; None if it is too long or no text."""
    return _decode(raw)[0] if len(raw) <= MAX_INCLUDED_BYTES else None


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


def _read_one(path: Path, relative: str, suite: str) -> SourceFile:
    try:
        with path.open("rb") as stream:
            return read_source(stream.read, path=relative, suite=suite)
    except OSError as error:
        return SourceFile(
            path=recorded_path(relative),
            suite=suite,
            sha256=hashlib.sha256(b"").hexdigest(),
            text=None,
            problem=f"the file cannot be read: {error.strerror}",
        )


def _decode(raw: bytes) -> tuple[str | None, str]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return None, f"the file is not UTF-8: {error.reason} at byte {error.start}"
    if "\0" in text:
        return None, f"the file has a NUL byte at character {text.index(chr(0))}: not a text"
    return text, ""
