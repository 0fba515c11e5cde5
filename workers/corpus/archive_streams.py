"""Streams that stop a compressed file from unpacking without end.

Owns the limits of decompression: total bytes, ratio, length of a tar header, memory of the xz
decoder. ``corpus/archives.py`` decides which files are read.
"""

from __future__ import annotations

import io
import lzma
from typing import IO, Any, Protocol

MAX_UNPACKED_BYTES = 4 * 2**30
MAX_RATIO = 300
"""Largest ratio of unpacked to packed bytes. Source texts reach a ratio of 10, near duplicates 50,
and a decompression bomb 1,000 or more."""
RATIO_FREE_BYTES = 32 * 2**20
"""Unpacked bytes that are allowed at any ratio, for padding and a few empty files."""
MAX_HEADER_BYTES = 2**20
"""Bytes of the names and extended headers of one tar member; the reader holds them in memory."""
MAX_XZ_MEMORY_BYTES = 256 * 2**20
"""Bytes of memory for one xz decoder. `xz -9` needs 65 MiB; a header may ask for 4 GiB."""
_READ_BYTES = 1 << 16


class Readable(Protocol):
    """An object with a ``read`` method."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` next bytes."""


class StreamLimitError(Exception):
    """An archive exceeds a limit; the message says which."""


class UnpackedBytes:
    """Counts the bytes to which one archive unpacks, over all its members.

    Args:
        num_compressed: size of the archive's file in bytes, for the ratio.
    """

    def __init__(self, num_compressed: int) -> None:
        ratio_bytes = max(RATIO_FREE_BYTES, MAX_RATIO * num_compressed)
        self._most = min(MAX_UNPACKED_BYTES, ratio_bytes)
        self._num_bytes = 0

    def count(self, num_bytes: int) -> None:
        """Count more unpacked bytes.

        Raises:
            StreamLimitError: The total exceeds the limit.
        """
        self._num_bytes += num_bytes
        if self._num_bytes > self._most:
            raise StreamLimitError(
                f"it unpacks to more than {self._most} bytes, as a decompression bomb does"
            )


class BoundedStream:
    """A readable stream that raises StreamLimitError instead of unpacking without end."""

    def __init__(self, inner: Readable, unpacked: UnpackedBytes) -> None:
        self._inner = inner
        self._unpacked = unpacked

    def read(self, size: int) -> bytes:
        """Return up to ``size`` next bytes.

        Raises:
            StreamLimitError: The archive exceeds a limit.
        """
        piece = self._inner.read(size)
        self._unpacked.count(len(piece))
        return piece


class TarBytes(BoundedStream):
    """The bytes of a tar file; limits a member's header, because ``tarfile`` trusts its length."""

    def __init__(self, inner: Readable, unpacked: UnpackedBytes) -> None:
        super().__init__(inner, unpacked)
        self._num_read = 0
        self._header_at: int | None = None

    def expect_header(self, position: int) -> None:
        """Announce that the next header begins at ``position``; only content is read before it."""
        self._header_at = position

    def expect_content(self) -> None:
        """Announce that a member's content is read next."""
        self._header_at = None

    def read(self, size: int) -> bytes:
        """Return up to ``size`` next bytes.

        Raises:
            StreamLimitError: The archive or a member's header exceeds a limit.
            EOFError: The file ends before a member does; ``tarfile`` would read on for ever.
        """
        piece = super().read(size)
        self._num_read += len(piece)
        if self._header_at is not None:
            if not piece and self._num_read < self._header_at:
                raise EOFError("the file ends in the middle of an archive member")
            if self._num_read > self._header_at + MAX_HEADER_BYTES + 2 * _READ_BYTES:
                raise StreamLimitError(
                    f"an archive member's header is longer than {MAX_HEADER_BYTES} bytes"
                )
        return piece


class XzStream(io.RawIOBase):
    """A readable xz file whose decoder takes at most ``MAX_XZ_MEMORY_BYTES`` of memory."""

    def __init__(self, inner: IO[bytes]) -> None:
        super().__init__()
        self._inner = inner
        self._decoder = self._new_decoder()
        self._at_end = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` and return the number of bytes; 0 at the end of the file.

        Raises:
            EOFError: The file ends in the middle of an xz stream.
        """
        while not self._at_end:
            piece = b""
            if self._decoder.eof:
                self._next_stream()
                continue
            if self._decoder.needs_input:
                piece = self._inner.read(_READ_BYTES)
                if not piece:
                    raise EOFError("the file ends in the middle of its xz stream")
            found = self._decoder.decompress(piece, max_length=len(buffer))
            if found:
                buffer[: len(found)] = found
                return len(found)
        return 0

    def _next_stream(self) -> None:
        # xz files may be concatenated, with zero padding between them.
        rest = self._decoder.unused_data.lstrip(b"\0")
        while not rest:
            piece = self._inner.read(_READ_BYTES)
            if not piece:
                self._at_end = True
                return
            rest = piece.lstrip(b"\0")
        self._decoder = self._new_decoder()
        self._pending(rest)

    def _pending(self, rest: bytes) -> None:
        # The decoder keeps this input; it decodes nothing yet.
        self._decoder.decompress(rest, max_length=0)

    @staticmethod
    def _new_decoder() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)
