"""Read the ``.cl`` files of a tar or zip archive without unpacking it, however hostile it is.

Owns the limits. Nothing is written to disk and no name of the archive is opened; links and special files are never
followed; what a compressed stream unfolds to is bounded in bytes, in ratio and in members.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from workers.archive_streams import BoundedStream, Readable, StreamLimitError, XzStream
from workers.corpus_files import (
    EXTENSION,
    MAX_INCLUDED_BYTES,
    MAX_MEMBERS,
    MAX_TEXT_BYTES,
    CorpusError,
    FoundFiles,
    SourceFile,
    header_text,
    is_header_name,
    is_source_name,
    read_source,
    recorded_path,
)


class _DamagedHeaderError(Exception):
    """A tar header in the middle of the file makes no sense."""


MAX_HEADER_BYTES = 2**20
"""Of one tar member: names and extended headers, which a reader must hold."""
_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tbz", ".zip")
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, ValueError,
    NotImplementedError, OverflowError, RecursionError, _DamagedHeaderError,
)  # fmt: skip
_TARFILE: Any = tarfile
"""Its classes of bad headers and its list of members are not in the type stubs."""
_BAD_HEADERS = (_TARFILE.InvalidHeaderError, _TARFILE.TruncatedHeaderError)
_OTHER_ROOT = re.compile(r"^[A-Za-z]:|\\")
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1


def is_archive_name(name: str) -> bool:
    """Whether a file's name says that it is an archive read here."""
    return name.lower().endswith(_SUFFIXES)


def read_archive(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file of an archive.

    Of two members of one name the later counts, as when unpacking.

    Raises:
        CorpusError: It cannot be read, is damaged, goes over a limit, or has no ``.cl`` file.
    """
    name = suite or _stem(source.name)
    found = _Found(name)
    is_zip = source.name.lower().endswith(".zip")
    try:
        with source.open("rb") as raw:
            if is_zip:
                _read_zip(raw, found)
            else:
                _read_tar(raw, source.stat().st_size, found)
    except StreamLimitError as error:
        raise CorpusError(
            f"{source}: {error}: not read; unpack what you trust of it and name the folder"
        ) from None
    except _DAMAGE as error:
        raise CorpusError(
            f"{source} is damaged or no archive ({error or type(error).__name__}): get it again"
        ) from None
    except OSError as error:
        raise CorpusError(f"{source}: cannot be read: {error.strerror or error}") from None
    if not found.files and not found.skipped:
        raise CorpusError(
            f"{source} has no {EXTENSION} file in it: name an archive of OpenCL sources"
        )
    return FoundFiles(
        files=tuple(found.files.values()), skipped=tuple(found.skipped), header=found.header
    )


class _StrictTarInfo(tarfile.TarInfo):
    """Says so where a header is damaged; tarfile itself takes that for the end and loses what follows."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except _BAD_HEADERS as error:
            raise _DamagedHeaderError(str(error)) from None


class _Found:
    """The files read so far, and what they may still take."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.files: dict[str, SourceFile] = {}
        self.skipped: list[tuple[str, str]] = []
        self._headers: dict[str, str] = {}
        self._text_bytes = 0

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append((recorded_path(name), reason))

    def add(self, name: str, read: Callable[[int], bytes]) -> None:
        file = read_source(read, path=name, suite=self.suite)
        self._text_bytes += len(file.text or "")
        if self._text_bytes > MAX_TEXT_BYTES:
            raise StreamLimitError(f"it has more than {MAX_TEXT_BYTES} bytes of sources")
        self.files[file.path] = file

    def header(self, name: str) -> str | None:
        file = self.files.get(name)
        return self._headers.get(name) if file is None else file.text

    def add_header(self, name: str, raw: bytes) -> None:
        text = header_text(raw)
        if text is not None and self._text_bytes + len(text) <= MAX_TEXT_BYTES:
            self._text_bytes += len(text)
            self._headers[recorded_path(name)] = text


def _unsafe(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or _OTHER_ROOT.search(name):
        return "its path leads out of the archive"
    return ""


def _read_tar(raw: IO[bytes], num_bytes: int, found: _Found) -> None:
    stream = BoundedStream(_unpacked(raw), num_compressed=num_bytes)
    stream.allow_until(MAX_HEADER_BYTES)
    # "r|": one pass, nothing sought for; each header must come within its allowance.
    with _TARFILE.open(fileobj=stream, mode="r|", tarinfo=_StrictTarInfo) as tar:
        for member in _members(tar, stream):
            if is_header_name(member.name) and member.isreg() and not member.issparse():
                if not _unsafe(member.name):
                    content = tar.extractfile(member)
                    found.add_header(member.name, content.read(MAX_INCLUDED_BYTES + 1))
                continue
            if not is_source_name(member.name):
                continue
            reason = _unsafe(member.name)
            if member.issym() or member.islnk():
                reason = "a link: not followed"
            elif not member.isreg() or member.issparse():
                reason = "a special file"
            content = None if reason else tar.extractfile(member)
            if content is None:
                found.skip(member.name, reason or "no file")
            else:
                found.add(member.name, content.read)


def _members(tar: Any, stream: BoundedStream) -> Iterator[tarfile.TarInfo]:
    for _ in range(MAX_MEMBERS):
        stream.allow_until(tar.offset + MAX_HEADER_BYTES)
        member = tar.next()
        if member is None:
            return
        # Else every header of a large archive stays in memory.
        tar.members, tar.pax_headers = [], {}
        stream.allow_until(None)
        yield member
    raise StreamLimitError(f"it has {MAX_MEMBERS} members or more")


def _unpacked(raw: IO[bytes]) -> Readable:
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    if magic.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(XzStream(raw))
    return raw


def _read_zip(raw: IO[bytes], found: _Found) -> None:
    with zipfile.ZipFile(raw) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise StreamLimitError(f"it has more than {MAX_MEMBERS} members")
        for member in members:
            is_header = is_header_name(member.filename)
            if member.is_dir() or not (is_header or is_source_name(member.filename)):
                continue
            reason = _unsafe(member.filename) or _unreadable(member)
            if reason:
                if not is_header:
                    found.skip(member.filename, reason)
                continue
            try:
                with contextlib.closing(archive.open(member)) as content:
                    bounded = BoundedStream(content, num_compressed=member.compress_size)
                    if is_header:
                        found.add_header(member.filename, bounded.read(MAX_INCLUDED_BYTES + 1))
                    else:
                        found.add(member.filename, bounded.read)
            except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
                if not is_header:
                    found.skip(member.filename, f"damaged: {error or type(error).__name__}")


def _unreadable(member: zipfile.ZipInfo) -> str:
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "a link: not followed"
    if mode and stat.S_IFMT(mode) and not stat.S_ISREG(mode):
        return "a special file"
    if member.flag_bits & _ENCRYPTED:
        return "encrypted"
    return "" if member.compress_type in _METHODS else "compressed by a method not read here"


def _stem(name: str) -> str:
    lower = name.lower()
    suffix = max((one for one in _SUFFIXES if lower.endswith(one)), key=len)
    return name[: -len(suffix)] or name
