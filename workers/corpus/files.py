"""Decide what a source file is: which names count, how bytes become text, how much text is held.

One rule serves folders (``corpus/folders.py``), archives (``corpus/archives.py``) and git
directories (``corpus/git.py``), so that the same tree gives the same kernels from each.
``front_end.py`` reads the texts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from llmperf_common.errors import LlmperfError
from llmperf_common.text_limits import MAX_SOURCE_BYTES

EXTENSION = ".cl"
ARCHIVE_SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tbz", ".zip",
)  # fmt: skip
MAX_HASHED_BYTES = 256 * 2**20
"""Maximum bytes of an oversized file that its hash covers. Reading all of a sparse file of 1 TiB
would take an hour."""
MAX_MEMBERS = 200_000
"""Maximum files of any kind in an archive or git tree. One with more files is an attack, or no
corpus."""
MAX_TEXT_BYTES = 512 * 2**20
"""Maximum bytes of memory for the sources of one folder, archive or git tree, which are all held at
once."""
MAX_HEADER_TEXT_BYTES = 128 * 2**20
"""Maximum bytes of memory for the headers of one source. An archive is read only once, so all its
headers are held until the end."""
MAX_PATH_CHARS = 4096
"""Maximum characters of a path in an archive or git tree; no folder can hold a longer path."""
MAX_INCLUDED_BYTES = 256 * 1024
"""Maximum bytes of one header; a larger header is not included."""
LINK = "a link: not followed"
LONG_PATH = f"its path has more than {MAX_PATH_CHARS} characters"
NESTED = "an archive inside another source: name it as a source of its own"
_HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".hxx", ".clh", ".hcl", ".inc", ".inl", ".def"})
_CHUNK_BYTES = 1 << 20


class CorpusError(LlmperfError, ValueError):
    """A corpus that cannot be read or written; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file as found. If it has no text to parse, ``text`` is None and ``problem`` says why."""

    path: str
    suite: str
    sha256: str
    text: str | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """The files of one SRC, and the entries that were not read, as (path, reason)."""

    files: tuple[SourceFile, ...]
    skipped: tuple[tuple[str, str], ...]


class MemoryBudget:
    """Counts the memory that the texts of one source take."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def take(self, num_bytes: int) -> bool:
        """Count more bytes; False if the budget is exceeded."""
        self._left -= num_bytes
        return self._left >= 0


def held_bytes(text: str | None) -> int:
    """Return the memory of a text in bytes. With a single emoji, every character takes four bytes.

    >>> held_bytes("a" * 1000) < 1100 < 4000 < held_bytes("a" * 998 + "\N{WORLD MAP}" * 2)
    True
    """
    return 0 if text is None else sys.getsizeof(text)


def is_source_name(name: str) -> bool:
    """Whether a path inside a source names a ``.cl`` file that is not hidden.

    >>> [is_source_name(name) for name in ("a/b.cl", "./a.CL", ".git/a.cl", "a.h")]
    [True, True, False, False]
    """
    return _suffix(name) == EXTENSION and not is_hidden(name)


def is_header_name(name: str) -> bool:
    """Whether a path inside a source names a header, which is what sources include.

    >>> [is_header_name(name) for name in ("a/b.h", ".env", ".x/b.h", "a.cfg")]
    [True, False, False, False]
    """
    return _suffix(name) in _HEADER_SUFFIXES and not is_hidden(name)


def is_archive_name(name: str) -> bool:
    """Whether a file name has the ending of a readable archive format; case is ignored."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def is_hidden(name: str) -> bool:
    """Whether the name of a file, or of a folder on its path inside a source, begins with a dot."""
    # PurePosixPath would take ten times as long, and hostile sources ask very often.
    return "." in name and any(
        part.startswith(".") and part not in (".", "..") for part in name.split("/")
    )


def _suffix(name: str) -> str:
    """Return the suffix of a path's last part in lower case, as ``PurePosixPath`` has it."""
    last = name
    while last.endswith(("/", "/.")):
        last = last.rstrip("/").removesuffix("/.")
    stem, dot, suffix = last.rpartition("/")[2].rpartition(".")
    return f".{suffix}".lower() if dot and stem and suffix else ""


def recorded_path(name: str) -> str:
    """Return a path as it is stored: normalised, and valid Unicode whatever its bytes were."""
    return recorded_name(PurePosixPath(name).as_posix())


def recorded_name(name: str) -> str:
    """Return a name as it is stored: valid Unicode whatever its bytes were."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_source(read: Callable[[int], bytes], *, path: str, suite: str) -> SourceFile:
    """Read one file; hold at most ``MAX_SOURCE_BYTES`` and read at most ``MAX_HASHED_BYTES``.

    Args:
        read: returns up to the given number of next bytes, and no bytes at the end.
        path: the file's path inside its source.
        suite: the suite of its kernels.
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
    """Return the text of a header; None if the header is too long or no text."""
    return _decode(raw)[0] if len(raw) <= MAX_INCLUDED_BYTES else None


def _decode(raw: bytes) -> tuple[str | None, str]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return None, f"the file is not UTF-8: {error.reason} at byte {error.start}"
    if "\0" in text:
        return None, f"the file has a NUL byte at character {text.index(chr(0))}: not a text"
    return text, ""
