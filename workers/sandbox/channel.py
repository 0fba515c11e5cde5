"""Framed messages between the collector and its children, over a socket pair per child.

Owns the frame: 4 bytes of length, then the message's name and JSON (``message_json.py``). Results never travel on a
child's stdout or stderr, so what a kernel prints cannot be taken for a result.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from workers.sandbox.message_json import UnfitJsonError, from_json, to_json
from workers.sandbox.messages import MESSAGES, FromChild, ToChild

_HEADER = struct.Struct(">I")
_MAX_FRAME_BYTES = 256 * 2**20


class ChannelClosedError(Exception):
    """The other end of the channel is closed."""


class UnreadableMessageError(ChannelClosedError):
    """The other end sent an invalid message: a kernel's stray write may have damaged the sender."""


class Channel:
    """One end of a socket pair that sends and receives messages."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._received = bytearray()

    def send(self, *messages: ToChild | FromChild) -> None:
        """Send messages in one system call, to save time; raises ChannelClosedError."""
        data = bytearray()
        for message in messages:
            body = type(message).__name__.encode() + b"\n" + to_json(message)
            data += _HEADER.pack(len(body)) + body
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> ToChild | FromChild:
        """Wait for the next message; raises ChannelClosedError at the end of the stream."""
        while True:
            message = self._next_frame()
            if message is not None:
                return message
            self._read_more()

    def receive_available(self) -> Iterator[ToChild | FromChild]:
        """Read once and yield the messages that have arrived; call it when the socket is readable.

        Raises:
            ChannelClosedError: The stream has ended, after every whole frame was yielded.
        """
        closed = False
        try:
            self._read_more()
        except ChannelClosedError:
            closed = True
        while (message := self._next_frame()) is not None:
            yield message
        if closed:
            raise ChannelClosedError("end of stream")

    def _read_more(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not data:
            raise ChannelClosedError("end of stream")
        self._received += data

    def _next_frame(self) -> ToChild | FromChild | None:
        if len(self._received) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._received)
        if length > _MAX_FRAME_BYTES:
            raise UnreadableMessageError(f"sent an unreadable message of {length} bytes")
        if len(self._received) < _HEADER.size + length:
            return None
        body = bytes(self._received[_HEADER.size : _HEADER.size + length])
        del self._received[: _HEADER.size + length]
        return _parse(body)


def _parse(body: bytes) -> ToChild | FromChild:
    kind, _, text = body.partition(b"\n")
    try:
        message: ToChild | FromChild = from_json(text, MESSAGES[kind.decode()])
    except (KeyError, UnicodeDecodeError, UnfitJsonError) as error:
        raise UnreadableMessageError(f"sent an unreadable message ({error})") from error
    return message
