"""What Redis servers and their client say, as they said it: which of it passes, and what is to be done about the rest."""

from __future__ import annotations

import ssl
import traceback
from pathlib import Path

import pytest
import redis  # noqa: TID251
from redis import exceptions  # noqa: TID251

from cluster.ledger.redis_connection import told_as_ours
from cluster.ledger.redis_errors import LedgerRefusedError, as_ours, repeats_password
from cluster.ledger.redis_rights import RIGHTS
from llmperf_common.ledger.protocol import LedgerAwayError, LedgerLostError

SHA = "08be99c76f7a10d96dc9ea23ee73a858e02d5ce8"
WRAP_62 = f"Error running script (call to f_{SHA}): @user_script:32: "
PLACE_70 = f" script: {SHA}, on @user_script:32."
FULL = "command not allowed when used memory > 'maxmemory'."
DOWN = "Link with MASTER is down and replica-serve-stale-data is set to 'no'."
HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "collect-on-a-cluster.md"

PASSING: dict[str, list[redis.RedisError]] = {
    "OOM": [
        exceptions.OutOfMemoryError(FULL),
        exceptions.OutOfMemoryError(FULL + PLACE_70),
        exceptions.ResponseError(f"{WRAP_62}@user_script: 32: -OOM {FULL}"),
    ],
    "READONLY": [
        exceptions.ReadOnlyError("You can't write against a read only replica."),
        exceptions.ResponseError(f"{WRAP_62}@user_script: 32: -READONLY You can't write"),
    ],
    "MASTERDOWN": [
        exceptions.MasterDownError(DOWN),
        exceptions.ResponseError(f"MASTERDOWN {DOWN}"),  # redis-py 5
    ],
    "CLUSTERDOWN": [
        exceptions.ClusterDownError("The cluster is down"),
        exceptions.ResponseError("CLUSTERDOWN The cluster is down"),
    ],
    "LOADING": [exceptions.BusyLoadingError("Redis is loading the dataset in memory")],
    "BUSY": [
        exceptions.ResponseError("BUSY Redis is busy running a script."),
        exceptions.ResponseError(f"Script killed by user with SCRIPT KILL...{PLACE_70}"),
        exceptions.ResponseError(f"{WRAP_62}Script killed by user with SCRIPT KILL..."),
    ],
    "MISCONF": [exceptions.ResponseError(f"MISCONF Errors writing to the AOF file{PLACE_70}")],
    "NOREPLICAS": [
        exceptions.ResponseError(f"NOREPLICAS Not enough good replicas to write.{PLACE_70}"),
        exceptions.ResponseError(f"{WRAP_62}@user_script: 1: -NOREPLICAS Not enough good"),
    ],
}
TO_BE_MENDED: dict[str, list[redis.RedisError]] = {
    "NOPERM": [
        exceptions.NoPermissionError("this user has no permissions to run the 'set' command"),
        exceptions.NoPermissionError(f"ACL failure in script: User u has no …{PLACE_70}"),
        exceptions.ResponseError(
            f"The user executing the script can't run this command or subcommand{PLACE_70}"
        ),
        exceptions.ResponseError(
            f"{WRAP_62}@user_script: 32: The user executing the script can't access at least one of the keys"
        ),
    ],
    "NOAUTH": [
        exceptions.AuthenticationError("Authentication required."),
        exceptions.AuthenticationError("invalid username-password pair or user is disabled."),
    ],
    "DENIED": [exceptions.ResponseError("DENIED Redis is running in protected mode because …")],
    "WRONGTYPE": [
        exceptions.ResponseError("WRONGTYPE Operation against a key"),
        exceptions.ResponseError(f"WRONGTYPE Operation against a key{PLACE_70}"),
        exceptions.ResponseError(f"{WRAP_62}WRONGTYPE Operation against a key"),
    ],
    "MOVED": [exceptions.MovedError("3999 127.0.0.1:6381")],
}
BUGS: list[redis.RedisError] = [
    exceptions.ResponseError(f"user_script:1: the global variable 'OOM' is not there{PLACE_70}"),
    exceptions.ResponseError(f"{WRAP_62}user_script:1: attempt to index a nil value (READONLY)"),
    exceptions.ResponseError("BUSYKEY Target key name already exists."),
    exceptions.ResponseError("unknown command 'NOPERM'"),
    exceptions.DataError("Invalid input of type: 'NoneType'"),
]


def _cases(table: dict[str, list[redis.RedisError]]) -> list[tuple[str, redis.RedisError]]:
    return [(word, error) for word, errors in table.items() for error in errors]


@pytest.mark.parametrize(("word", "error"), _cases(PASSING))
def test_what_passes_by_itself_is_waited_for(word: str, error: redis.RedisError) -> None:
    ours = as_ours(error)
    assert type(ours) is LedgerAwayError
    assert str(ours).startswith(f"the Redis server refuses us: {word} ")
    assert SHA not in str(ours)


@pytest.mark.parametrize(("word", "error"), _cases(TO_BE_MENDED))
def test_what_somebody_has_to_mend_says_where_and_how(word: str, error: redis.RedisError) -> None:
    with redis.Redis.from_url("redis://someone:secret@head:6380/0") as client:
        ours = as_ours(error, client)
    assert isinstance(ours, LedgerRefusedError)
    what, where, why, remedy = str(ours).split(": ", 3)
    assert (what, where) == ("the Redis server refuses us", "head:6380")
    assert why.startswith(f"{word} ")
    assert remedy
    assert "secret" not in str(ours)


@pytest.mark.parametrize("echoed", ["se/cret%", "SE/CRET%", "se%2fcret%25", "se\\/cret%"])
@pytest.mark.parametrize("kind", [exceptions.ConnectionError, exceptions.ResponseError])
def test_a_password_that_is_sent_back_is_left_out(
    kind: type[redis.RedisError], echoed: str
) -> None:
    """A server without the command AUTH, or a proxy before it, quotes its arguments."""
    said = f"unknown command 'AUTH', with args beginning with: 'someone' '{echoed}'"
    with redis.Redis.from_url("redis://someone:se%2fcret%25@head:6380/0") as client:
        with (
            pytest.raises(
                (LedgerAwayError, redis.RedisError), match=r"contains the password|AUTH"
            ) as raised,
            told_as_ours(client),
        ):
            raise kind(said)
        assert repeats_password(kind(said), client)
    shown = "".join(traceback.format_exception(raised.value)).lower()
    assert echoed.lower() not in shown


@pytest.mark.parametrize("error", BUGS, ids=str)
def test_a_mistake_of_ours_is_not_taken_for_the_servers(error: redis.RedisError) -> None:
    assert as_ours(error) is None


def test_a_lost_ledger_is_lost() -> None:
    error = exceptions.ResponseError(f"LEDGERLOST it was wiped{PLACE_70}")
    assert isinstance(as_ours(error), LedgerLostError)
    assert as_ours(exceptions.ResponseError("the LEDGERLOST of another")) is None


@pytest.mark.parametrize(
    ("cause", "is_refused"),
    [
        (ssl.SSLCertVerificationError("self-signed certificate"), True),
        (ssl.SSLError("[SSL: WRONG_VERSION_NUMBER] wrong version number"), True),
        (ssl.SSLEOFError("EOF occurred in violation of protocol"), False),
        (FileNotFoundError(2, "No such file or directory"), True),
        (ConnectionRefusedError(111, "Connection refused"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_server_that_has_gone_is_no_bad_certificate(cause: Exception, is_refused: bool) -> None:
    error = redis.ConnectionError(f"Error 1 connecting to head:6380. {cause}")
    error.__cause__ = cause
    with redis.Redis.from_url("rediss://head:6380/0") as client:
        ours = as_ours(error, client)
    assert str(ours).startswith("the Redis server cannot be reached: head:6380: ")
    assert isinstance(ours, LedgerAwayError)
    assert isinstance(ours, LedgerRefusedError) is is_refused


def test_a_unix_socket_that_is_not_there_is_a_server_that_is_not_there() -> None:
    error = redis.ConnectionError("Error 2 connecting to /run/redis.sock")
    error.__cause__ = FileNotFoundError(2, "No such file or directory")
    with redis.Redis.from_url("unix:///run/redis.sock") as client:
        assert type(as_ours(error, client)) is LedgerAwayError


def test_the_document_gives_the_rights_that_are_tested() -> None:
    assert f"ACL SETUSER llmperf on >PASSWORD {RIGHTS}\n" in HOW_TO.read_text(encoding="utf-8")
