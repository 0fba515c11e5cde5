"""Read the members of a tar archive in one pass, however hostile it is.

Owns all use of ``tarfile``. ``archive_streams.py`` has the limits, ``archive_files.py`` decides
which members are read.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any, Self

from workers.corpus.archive_files import ArchiveFiles
from workers.corpus.archive_streams import (
    StreamLimitError,
    TarBytes,
    UnpackedBytes,
    unpacked,
)
from workers.corpus.files import LINK, MAX_MEMBERS

_TARFILE: Any = tarfile
"""``tarfile`` without types: its type stubs lack its header errors and its list of members."""
_BAD_HEADERS = (_TARFILE.InvalidHeaderError, _TARFILE.TruncatedHeaderError)


class DamagedHeaderError(Exception):
    """A tar header in the middle of the file is damaged."""


class _StrictTarInfo(tarfile.TarInfo):
    """Raises DamagedHeaderError; tarfile would take a damaged header for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except (*_BAD_HEADERS, IndexError) as error:  # IndexError: a sparse file's map is cut short
            raise DamagedHeaderError(str(error)) from None


def read_tar(raw: IO[bytes], num_bytes: int, found: ArchiveFiles) -> None:
    """Read a tar archive, compressed or not, into ``found``.

    Args:
        raw: the file, at its beginning.
        num_bytes: size of the file in bytes.
        found: takes the members.

    Raises:
        StreamLimitError: The archive exceeds a limit.
        DamagedHeaderError: The archive is damaged; ``tarfile`` and the decompressors raise their
            own exceptions for this, too.
    """
    stream = TarBytes(unpacked(raw), UnpackedBytes(num_bytes))
    stream.expect_header(0)
    # "r|" reads in one pass without seeking. Every header must stay within the limit.
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
        # Otherwise tarfile keeps every header of a large archive in memory.
        tar.members, tar.pax_headers = [], {}
        stream.expect_content()
        yield member
    raise StreamLimitError(f"it has {MAX_MEMBERS} members or more")


def _obstacle(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return LINK
    return "a special file" if not member.isreg() or member.issparse() else ""
