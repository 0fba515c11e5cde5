"""Translate what a Redis server or its client library reports into errors of the ledger.

Decides which failures pass by themselves, and what an operator must do about the others. A failure
is recognised by its exception class. If the client library has no class for it, the code word that
begins the error reply decides, such as ``WRONGTYPE``. (If the library has a class, it removes the
code word from the text.) If a command in a script fails, Redis 6.2 puts the reply into another
sentence, Redis 7 does not.
"""

from __future__ import annotations

import re
import ssl

import redis  # noqa: TID251

from cluster.ledger.redis_rights import RIGHTS
from llmperf_common.ledger.protocol import LedgerAwayError, LedgerLostError
from llmperf_common.masking import without

_WORD_OF_CLASS: tuple[tuple[type[redis.RedisError], str], ...] = (
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),  # must come before its base class
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.NoScriptError, "NOSCRIPT"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.AuthenticationError, "NOAUTH"),
    (redis.exceptions.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (redis.exceptions.MovedError, "MOVED"),  # must come before its base class
    (redis.exceptions.AskError, "ASK"),
    (redis.exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)
_WORD_OF_SENTENCE = {
    "The user executing the script can't ": "NOPERM",
    "Script killed by user with SCRIPT KILL": "BUSY",
}
"""The beginnings of replies to which Redis 6.2 and 7.0 give no code word."""
_PASSING = frozenset(
    {
        "OOM", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "NOSCRIPT", "BUSY",
        "MISCONF", "NOREPLICAS",
    }
)  # fmt: skip
"""Code words of a server that is full, read-only, loading or busy. Its operator ends such a state
without our help."""
_SIGN_IN = "name a user and its password in the URL: redis://USER:PASSWORD@HOST:PORT/0"
_NO_CLUSTER = "it is a node of a Redis Cluster; name a server outside a Redis Cluster"
_ANOTHER_PROGRAM = (
    "another program has written to LLMPerf's keys, llmperf:*; name another database of the "
    "server, redis://…/1"
)
_REMEDIES = {
    "NOPERM": f"give its user the rights of a ledger: ACL SETUSER USER {RIGHTS}",
    "NOAUTH": _SIGN_IN,
    "WRONGPASS": _SIGN_IN,
    "DENIED": "set a password on the server, or let it accept this network",
    "WRONGTYPE": _ANOTHER_PROGRAM,
    "FOREIGN": _ANOTHER_PROGRAM,
    "MOVED": _NO_CLUSTER,
    "ASK": _NO_CLUSTER,
    "CROSSSLOT": _NO_CLUSTER,
}
_OF_CONTENT = frozenset({"WRONGTYPE", "FOREIGN"})
"""Code words for keys with a type or a value that no ledger writes. ``lua/prelude.lua`` and
``redis_values.py`` find the values and name them ``FOREIGN``."""
_TLS_REMEDY = (
    "rediss:// needs the server's tls-port, a certificate for that host name, and its CA in a file "
    "on this host: rediss://…/0?ssl_ca_certs=FILE"
)

_WRAP = re.compile(
    r"^Error running script \(call to f_[0-9a-f]{40}\): "
    r"@user_script: ?\d+: (@user_script: ?\d+: -?)?"
)
_PLACE = re.compile(r" script: [0-9a-f]{40}, on @user_script:\d+\.$")
_CODE_WORD = re.compile(r"^[A-Z]+(?= |$)")


class LedgerRefusedError(LedgerAwayError):
    """The server refuses us until an operator corrects a right, a password, a certificate or a key.

    Opening a ledger raises this error at once. Later in a run the collect loop waits, as for a
    server that does not answer: the ledger was usable before, so an operator has changed the
    server. Meanwhile the worker keeps its leases and results, and each wait prints what to do.

    Attributes:
        is_amid_script: whether the error ended a script, which may have done half of its work.
    """

    def __init__(self, message: str, *, is_amid_script: bool = False) -> None:
        super().__init__(message)
        self.is_amid_script = is_amid_script


class LedgerForeignError(LedgerRefusedError):
    """A key of a ledger has a type or a value that no ledger writes; other ledgers may be sound."""


def as_ours(
    error: redis.RedisError, client: redis.Redis | None = None
) -> LedgerAwayError | LedgerLostError | None:
    """Return the ledger's error for a failure; None for a bug of LLMPerf, which a retry would hide.

    Args:
        error: the client library's error.
        client: the client that raised it, to name the server.
    """
    where = f"{_server_of(client)}: " if client is not None else ""
    word, text = _read(error)
    text = without(text, _password_of(client))
    if word == "LEDGERLOST":
        return LedgerLostError(f"the ledger is lost: {text}")
    if word in _REMEDIES:
        kind = LedgerForeignError if word in _OF_CONTENT else LedgerRefusedError
        opening = "has a value that is not ours" if word == "FOREIGN" else "refuses us"
        return kind(
            f"the Redis server {opening}: {where}{text.rstrip('.')}: {_REMEDIES[word]}",
            is_amid_script=_without_script(str(error)) != str(error),
        )
    if word in _PASSING:
        return LedgerAwayError(f"the Redis server refuses us: {where}{text}")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        told = f"the Redis server cannot be reached: {where}{text}"
        if _is_of_tls(error, client):
            return LedgerRefusedError(f"{told.rstrip('.')}: {_TLS_REMEDY}")
        return LedgerAwayError(told)
    return None


def repeats_password(error: redis.RedisError, client: redis.Redis | None) -> bool:
    """Whether an error contains our password, because servers quote commands unknown to them."""
    return without(str(error), _password_of(client)) != str(error)


def _password_of(client: redis.Redis | None) -> str:
    return (
        ""
        if client is None
        else str(client.connection_pool.connection_kwargs.get("password") or "")
    )


def _read(error: redis.RedisError) -> tuple[str, str]:
    """Return an error's code word ('' if none), and its text without Redis' words on scripts."""
    text = _without_script(str(error))
    for kind, word in _WORD_OF_CLASS:
        if isinstance(error, kind):
            return word, text if text.startswith(f"{word} ") else f"{word} {text}"
    if not isinstance(error, redis.ResponseError):
        return "", text
    for beginning, word in _WORD_OF_SENTENCE.items():
        if text.startswith(beginning):
            return word, f"{word} {text}"
    found = _CODE_WORD.match(text)
    return found.group() if found else "", text


def _without_script(text: str) -> str:
    return _PLACE.sub("", _WRAP.sub("", text))


def _is_of_tls(error: redis.RedisError, client: redis.Redis | None) -> bool:
    """Whether a connection failed because of its certificates, not because no server answers."""
    cause = error.__cause__ or error.__context__
    if isinstance(
        cause, FileNotFoundError
    ):  # with TLS: the CA file is missing; with a unix socket: no server runs
        kind = client.connection_pool.connection_class if client is not None else None
        return kind is not None and issubclass(kind, redis.SSLConnection)
    has_gone = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return isinstance(cause, ssl.SSLError) and not has_gone


def _server_of(client: redis.Redis) -> str:
    """Return the address of a client's server, without user and password."""
    options = client.connection_pool.connection_kwargs
    return str(
        options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    )
