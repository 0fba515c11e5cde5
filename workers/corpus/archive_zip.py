"""Read the members of a zip archive, however hostile it is.

Owns all use of ``zipfile``, and two checks of an archive's directory, which ``zipfile`` trusts: its
size, and that no two entries share bytes. ``archive_streams.py`` has the limits,
``archive_files.py`` decides which members are read.
"""

from __future__ import annotations

import contextlib
import io
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import IO

from workers.corpus.archive_files import ArchiveFiles
from workers.corpus.archive_streams import BoundedStream, StreamLimitError, UnpackedBytes
from workers.corpus.files import LINK, MAX_MEMBERS

MAX_DIRECTORY_BYTES = 64 * 2**20
"""Maximum bytes of a zip's directory, which is read at once. 200,000 entries with long paths take
half of this."""
_ENTRY_MAGIC = b"PK\x01\x02"
_LOCAL_HEADER_BYTES = 30
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError)


class _DirectoryReader(io.BufferedReader):
    """Refuses a directory that is too large before ``zipfile`` makes an object for each entry."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(raw)  # type: ignore[arg-type]
        self.is_open = False

    def read(self, size: int | None = -1) -> bytes:
        most = MAX_DIRECTORY_BYTES
        wanted = most + 1 if size is None or size < 0 else size
        if not self.is_open and wanted > most + 1:
            raise StreamLimitError(f"its list of members has more than {most} bytes")
        piece = super().read(wanted)
        if not self.is_open and piece.count(_ENTRY_MAGIC) > MAX_MEMBERS:
            raise StreamLimitError(f"it has more than {MAX_MEMBERS} members")
        return piece


def read_zip(raw: IO[bytes], num_bytes: int, found: ArchiveFiles) -> None:
    """Read a zip archive into ``found``.

    Args:
        raw: the file, at its beginning.
        num_bytes: size of the file in bytes.
        found: takes the members.

    Raises:
        StreamLimitError: The archive exceeds a limit or is a decompression bomb.
        zipfile.BadZipFile: The archive is damaged; ``zipfile`` raises other exceptions, too.
    """
    with _DirectoryReader(raw) as reader, zipfile.ZipFile(reader) as archive:
        reader.is_open = True
        _check_apart(archive)
        unpacked = UnpackedBytes(num_bytes)
        for member in _files(archive.infolist()):
            if not found.wants(member.filename, _obstacle(member)):
                continue
            try:
                with contextlib.closing(archive.open(member)) as content:
                    found.add(member.filename, BoundedStream(content, unpacked).read)
            except _DAMAGE as error:
                found.skip(member.filename, f"damaged: {error or type(error).__name__}")


def _files(members: Iterable[zipfile.ZipInfo]) -> Iterator[zipfile.ZipInfo]:
    # ZipInfo.is_dir fails for an entry with an empty name; such entries are left out.
    return (one for one in members if one.filename and not one.filename.endswith(("/", "\\")))


def _check_apart(archive: zipfile.ZipFile) -> None:
    """Refuse entries that share bytes, because a small archive could hold any number of them."""
    places = sorted(
        (one.header_offset, one.header_offset + _LOCAL_HEADER_BYTES + one.compress_size)
        for one in archive.infolist()
    )
    if any(end > begin for (_, end), (begin, _) in pairwise(places)):
        raise StreamLimitError("members share their bytes, as in a decompression bomb")


def _obstacle(member: zipfile.ZipInfo) -> str:
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        return LINK
    if mode and stat.S_IFMT(mode) and not stat.S_ISREG(mode):
        return "a special file"
    if member.flag_bits & _ENCRYPTED:
        return "encrypted"
    return "" if member.compress_type in _METHODS else "compressed with an unsupported method"
