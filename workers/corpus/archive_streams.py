"""Streams that stop a compressed file from unpacking without end.

Owns the decoders of gzip, bzip2 and xz, and the limits of decompression: total bytes, ratio, number
of small streams, length of a tar header, memory of the xz decoder. ``archive_files.py`` decides
which files are read.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, Protocol

MAX_UNPACKED_BYTES = 4 * 2**30
MAX_RATIO = 300
"""Largest ratio of unpacked to packed bytes. Source texts reach a ratio of 10, near duplicates 50,
and a decompression bomb 1,000 or more."""
RATIO_FREE_BYTES = 32 * 2**20
"""Unpacked bytes that are allowed at any ratio, for padding and a few empty files."""
MAX_HEADER_BYTES = 2**20
"""Maximum bytes of the names and extended headers of one tar member; they are held in memory."""
MAX_XZ_MEMORY_BYTES = 256 * 2**20
"""Maximum bytes of memory for one xz decoder. `xz -9` needs 65 MiB; a header may ask for 4 GiB."""
SMALL_STREAM_BYTES = 2**14
"""A compressed stream is small if it unpacks to fewer bytes than this. ``MAX_UNPACKED_BYTES`` allows
262,144 larger streams, which take 5 s. Programs that write many streams write at least 64 KiB to
each."""
MAX_SMALL_STREAMS = 10_000
"""Maximum number of small streams in a file. Each takes 10 to 20 µs and at least 14 bytes of the
file, so a file of 40 MB could take 20 s. Programs write one or two; bgzip ends a file with an empty
stream."""
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
    """The bytes of a tar file.

    Limits the length of a member's header, because ``tarfile`` reads as much as the header says.
    """

    def __init__(self, inner: Readable, unpacked: UnpackedBytes) -> None:
        super().__init__(inner, unpacked)
        self._num_read = 0
        self._header_at: int | None = None

    def expect_header(self, position: int) -> None:
        """Note that the next header begins at ``position``; until there, only content is read."""
        self._header_at = position

    def expect_content(self) -> None:
        """Note that a member's content is read next."""
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


class _Decoder(Protocol):
    """Unpacks one stream (``gzip`` calls it a member), as the decoders of bz2 and lzma do."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether nothing more can be unpacked without further input."""
        ...

    @property
    def unused_data(self) -> bytes:
        """The input after the end of the stream."""
        ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Unpack at most ``max_length`` bytes; keep the input that was not used."""
        ...


class _GzipDecoder:
    """zlib's decoder of one gzip member, with the interface of ``_Decoder``."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self._was_full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._was_full and not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._was_full = len(found) == max_length  # zlib may hold more
        return found


def _xz_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)


class PackedStream(io.RawIOBase):
    """A readable gzip, bzip2 or xz file; limits the number of its small streams.

    Such a file may consist of several streams. The standard library reads any number of empty
    streams before a read returns anything.

    Args:
        inner: the file, at its beginning.
        new_decoder: returns a decoder of one stream.
        magic: first bytes of every stream. If it is given, other bytes after a stream are ignored,
            as ``bzip2`` ignores them.
    """

    def __init__(
        self, inner: IO[bytes], new_decoder: Callable[[], _Decoder], magic: bytes = b""
    ) -> None:
        super().__init__()
        self._inner = inner
        self._new_decoder = new_decoder
        self._magic = magic
        self._decoder = new_decoder()
        self._rest = b""
        self._num_small = 0
        self._stream_bytes = 0
        self._at_end = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` and return the number of bytes; 0 at the end of the file.

        Raises:
            EOFError: The file ends in the middle of a stream.
            StreamLimitError: The file has too many small streams.
        """
        while not self._at_end:
            if self._decoder.eof:
                self._next_stream()
                continue
            piece = b""
            if self._decoder.needs_input:
                piece = self._rest or self._inner.read(_READ_BYTES)
                self._rest = b""
                if not piece:
                    raise EOFError("the file ends in the middle of its compressed stream")
            found = self._decoder.decompress(piece, len(buffer))
            if found:
                self._stream_bytes += len(found)
                buffer[: len(found)] = found
                return len(found)
        return 0

    def _next_stream(self) -> None:
        if self._stream_bytes < SMALL_STREAM_BYTES:
            self._num_small += 1
            if self._num_small > MAX_SMALL_STREAMS:
                raise StreamLimitError(
                    f"it has more than {MAX_SMALL_STREAMS} compressed streams of less than "
                    f"{SMALL_STREAM_BYTES} bytes"
                )
        # Files may be concatenated, with zero padding between them.
        rest = self._decoder.unused_data.lstrip(b"\0")
        while not rest:
            piece = self._inner.read(_READ_BYTES)
            if not piece:
                self._at_end = True
                return
            rest = piece.lstrip(b"\0")
        if not rest.startswith(self._magic[: len(rest)]):
            self._at_end = True
            return
        self._rest = rest
        self._decoder = self._new_decoder()
        self._stream_bytes = 0


def unpacked(raw: IO[bytes]) -> Readable:
    """Return a stream of the bytes to which a file unpacks; the file itself if it is not packed.

    Args:
        raw: the file, at its beginning.
    """
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return io.BufferedReader(PackedStream(raw, _GzipDecoder))
    if magic.startswith(b"BZh"):
        return io.BufferedReader(PackedStream(raw, bz2.BZ2Decompressor, magic=b"BZh"))
    if magic.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(PackedStream(raw, _xz_decoder))
    return raw
