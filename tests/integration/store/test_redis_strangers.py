"""A server that is no Redis server, or not quite: told within the time limit, without memory and without a traceback."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from cluster.ledger import redis_connection
from cluster.ledger.redis_connection import LedgerUrlError, connect
from llmperf_common.ledger.protocol import LedgerAwayError

_TIMEOUT_S = 1.0


def for_ever(data: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    """Yield the same bytes again and again."""
    while True:
        yield data
        time.sleep(pause_s)


ANSWERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "says OK to all": lambda asked: iter([b"+OK\r\n" * asked.count(b"*")]),
    "nests arrays": lambda _: iter([b"*1\r\n" * 200_000]),
    "claims a terabyte": lambda _: iter([b"$999999999999\r\n", *[b"x" * 1_000_000] * 100]),
    "never ends its line": lambda _: for_ever(b"+" + b"x" * 1_000_000),
    "announces many": lambda _: iter([b"*99999999\r\n:1\r\n"]),
    "speaks HTTP": lambda _: iter([b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    "drips": lambda _: for_ever(b"+", 0.2),
    "answers a minus sign and no more": lambda _: iter([b"-"]),
    "knows PING alone": lambda asked: iter([b"+PONG\r\n" if b"PING" in asked else b"+OK\r\n"]),
    "nests after PING": lambda asked: iter(
        [b"+PONG\r\n" if b"PING" in asked else b"*1\r\n" * 20_000 + b":1\r\n"]
    ),
    "has a strange version": lambda asked: iter(
        [b"+PONG\r\n" if b"PING" in asked else _info(asked)]
    ),
}


def _info(asked: bytes) -> bytes:
    text = b"# Server\r\nredis_version:seven\r\n"
    return b"$%d\r\n%s\r\n" % (len(text), text) if b"INFO" in asked else b"+OK\r\n"


@contextlib.contextmanager
def listening(answer: Callable[[bytes], Iterator[bytes]]) -> Iterator[str]:
    """Answer each request on each connection in this way."""

    def serve(one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            while asked := one.recv(65_536):
                for part in answer(asked):
                    one.sendall(part)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = server.accept()
                threading.Thread(target=serve, args=(one,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "_TIMEOUT_S", _TIMEOUT_S)


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_server_that_is_no_redis_server(kind: str) -> None:
    before, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with listening(ANSWERS[kind]) as url, pytest.raises(LedgerUrlError, match="not a Redis server"):
        connect(url)
    assert time.monotonic() - began_s < 5 * _TIMEOUT_S
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100_000


def test_a_server_that_says_nothing_is_away() -> None:
    with listening(lambda _: iter([])) as url, pytest.raises(LedgerAwayError, match="Timeout"):
        connect(url)


def test_an_error_for_an_answer_is_told() -> None:
    refusing = [b"-DENIED Redis is running in protected mode\r\n"]
    with listening(lambda _: iter(refusing)) as url, pytest.raises(LedgerAwayError, match="DENIED"):
        connect(url)
