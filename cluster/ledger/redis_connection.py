"""Connect to the Redis server of a cluster's ledgers, or say why it cannot be used.

Owns the checks before a ledger is opened (URL, version, rights), and where the library's errors
become errors of the ledger. ``ledger/redis.py`` says what the server keeps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import redis  # noqa: TID251
from redis.backoff import NoBackoff  # noqa: TID251
from redis.retry import Retry  # noqa: TID251

from cluster.ledger.redis_errors import as_ours, repeats_password
from cluster.ledger.redis_greeting import NotRedisError, greet
from cluster.ledger.redis_options import option_problem
from cluster.ledger.redis_rights import rehearsal
from cluster.ledger.redis_values import ForeignValueError
from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.ledger.protocol import LedgerAwayError
from llmperf_common.masking import MASK, masked, public_url

RedisClient = redis.Redis
_TIMEOUT_S = 10.0
_LEAST_VERSION = (6, 2)
_NONSENSE = (AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What the client library raises if it cannot make sense of an answer."""


class LedgerUrlError(LlmperfError, ValueError):
    """``--ledger`` names no usable Redis server."""

    exit_code = Exit.USAGE


def connect(url: str) -> RedisClient:
    """Return a client for ``url``: ``redis://[USER:PASSWORD@]HOST:PORT/DB``; ``rediss://`` for TLS.

    Raises:
        LedgerUrlError: The URL is invalid, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses to serve us.
    """
    scheme, separator, rest = url.partition("://")
    url = f"{scheme.lower()}{separator}{rest}"  # the client library refuses `Redis://`
    named = f"--ledger {public_url(url)!r}"
    if public_url(url).endswith(MASK):
        # If the URL cannot be split, the client library's message could show parts of the password.
        raise LedgerUrlError(
            f"{named}: invalid URL: write redis://[USER:PASSWORD@]HOST:PORT[/DB]; in the password "
            "(and in ?options) write each of / ? # @ and space percent-encoded, as %2F for /"
        )
    problem = option_problem(url)
    if problem is not None:
        raise LedgerUrlError(f"{named}: {problem}")
    try:
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            retry=Retry(
                NoBackoff(), 0
            ),  # the collect loop waits (Backoff) and goes on with its other work
        )
        client.connection_pool.make_connection()  # opens no connection, but checks the options
    except (TypeError, ValueError) as error:
        raise LedgerUrlError(f"{named}: {masked(str(error), url)}") from None
    with closed_if_refused(client):
        try:
            with told_as_ours(client):
                _greet(client)
                version = str(client.info("server")["redis_version"])
            is_too_old = tuple(map(int, version.split(".")[:2])) < _LEAST_VERSION
        except redis.RedisError as error:  # the server lacks this database or the command INFO
            raise LedgerUrlError(
                f"{named}: its server cannot be used: {masked(str(error), url)}"
            ) from None
        except (NotRedisError, *_NONSENSE) as error:
            is_stranger = isinstance(error, NotRedisError)
            what = str(error) if is_stranger else "its answer to INFO is not that of a Redis server"
            raise LedgerUrlError(
                f"{named}: the server at this address is not a Redis server ({what}); check host "
                "and port"
            ) from None
        if is_too_old:
            raise LedgerUrlError(
                f"{named}: its server is Redis {version}, but LLMPerf needs Redis 6.2 or newer"
            )
    return client


def _greet(client: RedisClient) -> None:
    """Raise an error if the server does not speak Redis's protocol."""
    connection: Any = client.connection_pool.make_connection()
    try:
        # This private method is the only one that opens the connection which the URL describes
        # (with TLS or through a unix socket) and does not read from it.
        server = connection._connect()
    except TimeoutError:
        raise redis.TimeoutError("Timeout connecting to server") from None
    except OSError:
        return  # the client library will get the same error and report it
    try:
        greet(server, timeout_s=_TIMEOUT_S)
    except TimeoutError:
        raise redis.TimeoutError("Timeout reading from socket") from None
    finally:
        server.close()


@contextlib.contextmanager
def closed_if_refused(client: RedisClient) -> Iterator[None]:
    """Close the client if the server cannot be used."""
    try:
        yield
    except (LedgerAwayError, LedgerUrlError):
        client.close()
        raise


def rehearse_rights(client: RedisClient) -> None:
    """Raise ``LedgerRefusedError`` if our user lacks a right; ignore other errors."""
    rights = rehearsal()
    with told_as_ours(client), client.pipeline(transaction=False) as pipeline:
        for _, command in rights:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        replies = pipeline.execute(raise_on_error=False)
        lacking = [
            name
            for (name, _), reply in zip(rights, replies, strict=True)
            if isinstance(reply, redis.exceptions.NoPermissionError)
        ]
        if lacking:
            raise redis.exceptions.NoPermissionError(
                f"its user may not use {', '.join(dict.fromkeys(lacking))} on llmperf:*"
            )


@contextlib.contextmanager
def told_as_ours(client: RedisClient | None = None) -> Iterator[None]:
    """Raise errors of the ledger that name ``client``'s server, in place of two others.

    These are the client library's errors, and those of values that no ledger writes.
    """
    try:
        yield
    except ForeignValueError as error:
        told = redis.ResponseError(f"FOREIGN value: {error}")
        raise as_ours(told, client) or told from error
    except redis.RedisError as error:
        ours = as_ours(error, client)
        if client is not None and repeats_password(error, client):
            raise ours or type(error)("its message contains the password and is left out") from None
        if ours is None:
            raise
        raise ours from error
