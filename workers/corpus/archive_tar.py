"""Read the members of a tar archive in one pass, however hostile it is.

Owns the door to ``tarfile``. Limits: ``archive_streams.py``; which members are read: ``archive_files.py``.
"""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
from collections.abc import Iterator
from typing import IO, Any, Self

from workers.corpus.archive_files import ArchiveFiles
from workers.corpus.archive_streams import (
    Readable,
    StreamLimitError,
    TarBytes,
    UnpackedBytes,
    XzStream,
)
from workers.corpus.files import LINK, MAX_MEMBERS

_TARFILE: Any = tarfile
"""Its classes of bad headers and its list of members are not in the type stubs."""
_BAD_HEADERS = (_TARFILE.InvalidHeaderError, _TARFILE.TruncatedHeaderError)


class DamagedHeaderError(Exception):
    """A tar header in the middle of the file makes no sense."""


class _StrictTarInfo(tarfile.TarInfo):
    """Says so where a header is damaged; tarfile itself takes that for the end and loses what follows."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except (*_BAD_HEADERS, IndexError) as error:  # IndexError: a sparse file's map is cut off
            raise DamagedHeaderError(str(error)) from None


def read_tar(raw: IO[bytes], num_bytes: int, found: ArchiveFiles) -> None:
    """Read a tar archive, compressed or not, into ``found``.

    Args:
        raw: the file, at its beginning.
        num_bytes: of the file.
        found: takes the members.

    Raises:
        StreamLimitError: It goes over a limit.
        DamagedHeaderError: As any exception of the compression's and of ``tarfile``: it is damaged.
    """
    stream = TarBytes(_unpacked(raw), UnpackedBytes(num_bytes))
    stream.expect_header(0)
    # "r|": one pass, nothing sought for; each header must come within its allowance.
    with _TARFILE.open(fileobj=stream, mode="r|", tarinfo=_StrictTarInfo) as tar:
        for member in _members(tar, stream):
            if not member.isdir() and found.wants(member.name, _obstacle(member)):
                found.add(member.name, tar.extractfile(member).read)


def _members(tar: Any, stream: TarBytes) -> Iterator[tarfile.TarInfo]:
    for _ in range(MAX_MEMBERS):
        stream.expect_header(tar.offset)
        member = tar.next()
        if member is None:
            return
        # Else every header of a large archive stays in memory.
        tar.members, tar.pax_headers = [], {}
        stream.expect_content()
        yield member
    raise StreamLimitError(f"it has {MAX_MEMBERS} members or more")


def _obstacle(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return LINK
    return "a special file" if not member.isreg() or member.issparse() else ""


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
