"""What a source file is: which names count, how its bytes become text, and how much of it is held.

One rule for folders (``corpus/folders.py``), archives (``corpus/archives.py``) and git directories
(``corpus/git.py``), so that the same tree gives the same kernels from each. Does not own what a text means:
``signature.py``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from llmperf_common.errors import LlmperfError

EXTENSION = ".cl"
ARCHIVE_SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tbz", ".zip",
)  # fmt: skip
MAX_SOURCE_BYTES = 8 * 2**20
"""Bytes. No hand-written kernel is larger, and parsing a larger file would take minutes."""
MAX_HASHED_BYTES = 256 * 2**20
"""Bytes of a too large file that its hash covers. Reading a sparse file of 1 TiB whole would take
an hour."""
MAX_MEMBERS = 200_000
"""Files of any kind in one archive or git tree: more is an attack, or no corpus."""
MAX_TEXT_BYTES = 512 * 2**20
"""Bytes of memory for the sources of one folder, archive or git tree: all of them are held."""
MAX_HEADER_TEXT_BYTES = 128 * 2**20
"""Bytes of memory for the headers of one source: an archive is read once, so all of its headers are
held to the end."""
MAX_PATH_CHARS = 4096
"""Characters of a path inside an archive or git tree: no folder could hold a longer one."""
MAX_INCLUDED_BYTES = 256 * 1024
"""Bytes of one header; a longer one is not included."""
LINK = "a link: not followed"
LONG_PATH = f"its path has more than {MAX_PATH_CHARS} characters"
NESTED = "an archive inside another source: name it as a source of its own"
_HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".hxx", ".clh", ".hcl", ".inc", ".inl", ".def"})
_CHUNK_BYTES = 1 << 20


class CorpusError(LlmperfError, ValueError):
    """A corpus that cannot be read or written; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file as found. ``text`` is None, with the ``problem``, where there is none to parse."""

    path: str
    suite: str
    sha256: str
    text: str | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """What one SRC holds: its files, and entries that were not read with the reason."""

    files: tuple[SourceFile, ...]
    skipped: tuple[tuple[str, str], ...]


class MemoryBudget:
    """Counts the memory that the texts of one source take."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def take(self, num_bytes: int) -> bool:
        """Count some more bytes; False where the budget is spent."""
        self._left -= num_bytes
        return self._left >= 0


def held_bytes(text: str | None) -> int:
    """Return the memory of a text: one odd character makes every other take four bytes.

    >>> held_bytes("a" * 1000) < 1100 < 4000 < held_bytes("a" * 999 + "\N{SNOWMAN}" + "\N{WORLD MAP}")
    True
    """
    return 0 if text is None else sys.getsizeof(text)


def is_source_name(name: str) -> bool:
    """Whether a path inside a source names a ``.cl`` file that is not hidden.

    >>> [is_source_name(name) for name in ("a/b.cl", "./a.CL", ".git/a.cl", "a.h")]
    [True, True, False, False]
    """
    return PurePosixPath(name).suffix.lower() == EXTENSION and not is_hidden(name)


def is_header_name(name: str) -> bool:
    """Whether a path inside a source names what sources include, other sources aside.

    >>> [is_header_name(name) for name in ("a/b.h", ".env", ".x/b.h", "a.cfg")]
    [True, False, False, False]
    """
    return PurePosixPath(name).suffix.lower() in _HEADER_SUFFIXES and not is_hidden(name)


def is_archive_name(name: str) -> bool:
    """Whether a file name has the ending of a readable archive format; case is ignored."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def is_hidden(name: str) -> bool:
    """Whether a path inside a source, or a folder on it, begins with a dot."""
    return any(part.startswith(".") and part != ".." for part in PurePosixPath(name).parts)


def recorded_path(name: str) -> str:
    """Return a path as it is stored: normal, and valid Unicode whatever its bytes were."""
    return recorded_name(PurePosixPath(name).as_posix())


def recorded_name(name: str) -> str:
    """Return a name as it is stored: valid Unicode whatever its bytes were."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_source(read: Callable[[int], bytes], *, path: str, suite: str) -> SourceFile:
    """Read one file; never more than ``MAX_SOURCE_BYTES`` of it are held, nor more than ``MAX_HASHED_BYTES`` read.

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
        while num_bytes <= MAX_HASHED_BYTES and (piece := read(_CHUNK_BYTES)):
            digest.update(piece)
            num_bytes += len(piece)
        least = "at least " if num_bytes > MAX_HASHED_BYTES else ""
        text, problem = None, f"the file has {least}{num_bytes} bytes, more than {MAX_SOURCE_BYTES}"
    return SourceFile(
        path=recorded_path(path),
        suite=recorded_name(suite),
        sha256=digest.hexdigest(),
        text=text,
        problem=problem,
    )


def header_text(raw: bytes) -> str | None:
    """Return the text of a header; None if it is too long or no text."""
    return _decode(raw)[0] if len(raw) <= MAX_INCLUDED_BYTES else None


def _decode(raw: bytes) -> tuple[str | None, str]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return None, f"the file is not UTF-8: {error.reason} at byte {error.start}"
    if "\0" in text:
        return None, f"the file has a NUL byte at character {text.index(chr(0))}: not a text"
    return text, ""
