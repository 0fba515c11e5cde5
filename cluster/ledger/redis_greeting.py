"""Find out whether a server speaks Redis's protocol, before the client library reads its answers.

The library trusts a server: it waits for ever for the end of a line that comes byte by byte, takes
as much memory as the server announces, and raises arbitrary exceptions on nonsense. So the first
answer is read here, with limits of time and size. Owns these limits.
"""

from __future__ import annotations

import contextlib
import socket
import time

_PING = b"*1\r\n$4\r\nPING\r\n"
_MOST_BYTES = 8192
"""Maximum length of the answer to PING; the longest of Redis, an error, has about 700 bytes."""


class NotRedisError(Exception):
    """The server answers, but not as a Redis server does."""


def greet(server: socket.socket, *, timeout_s: float) -> None:
    """Send PING and read the answer, a line that begins with ``+PONG`` or, for an error, with ``-``.

    If the server closes the connection, return: the client library will get the same error and
    report it.

    Args:
        server: a new connection, with TLS if the URL asks for it.
        timeout_s: seconds for the whole answer.

    Raises:
        NotRedisError: The answer begins in another way, is too long, or is incomplete when time is
            up.
        TimeoutError: Not one byte of an answer has come in time.
    """
    give_up_s = time.monotonic() + timeout_s
    answer = b""
    with contextlib.suppress(ConnectionError):
        server.settimeout(timeout_s)
        server.sendall(_PING)
        while b"\r\n" not in answer:
            server.settimeout(max(0.001, give_up_s - time.monotonic()))
            try:
                some = server.recv(_MOST_BYTES)
            except TimeoutError:
                some = b""
                if not answer:
                    raise
            if time.monotonic() >= give_up_s:
                raise NotRedisError(f"its answer to PING is incomplete after {timeout_s:g} s")
            if not some:
                return
            answer += some
            if answer[:1] not in (b"+", b"-") or len(answer) > _MOST_BYTES:
                raise NotRedisError(f"its answer to PING begins with {answer[:20]!r}")
    if answer[:1] == b"+" and not answer.startswith(b"+PONG\r\n"):
        raise NotRedisError(f"its answer to PING is {answer[:20]!r}")
