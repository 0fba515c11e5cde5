"""Keys of a ledger that another program has written to: a message or a result, never a traceback."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator

import pytest
import redis  # noqa: TID251

from cluster.ledger.redis import RUNS_KEY, RedisLedger, RedisLocation
from cluster.ledger.redis_errors import LedgerForeignError
from cluster.ledger.redis_runs import runs_on
from cluster.ledger.redis_values import MAX_CLASSES, MAX_TASKS
from llmperf.exits import Exit
from llmperf_common.ledger.protocol import Committed, Holder, Lease, LedgerLostError
from tests.support.contracts.ledger_contract import claim, shard_pair, tasks_of
from tests.support.in_process import assert_refused, llmperf
from tests.support.servers.redis_server import RedisServer

HOLDER = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
OTHER = Holder(host="h", boot_id="b", pid=2, start_ticks=1)
LEASE = Lease(task=0, epoch=1, token=1, attempt=1)
DATASET = "run-1"
TASKS = range(20)
ABOUT = {
    "run_id": "", "location": "d", "plan_hash": "p", "num_tasks": 20, "device_classes": ["c"],
    "created_at": "2026",
}  # fmt: skip
EPOCHS = f"llmperf:{{{DATASET}}}:epochs"
NOT_EPOCHS = [b"x", b"", b"\xff", b"-1", b"9" * 5000, b"1" + b"0" * 12, b"1.5", b" 1", b"007"]
JUNK = [b"x", b"", b"\xff\xfe", b"-1", b"nan", b"inf", b"9" * 400, b"1.5", b"9007199254740993"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as made:
        made.flushall()
        yield made


@pytest.fixture
def place(server: RedisServer, admin: redis.Redis) -> Iterator[RedisLocation]:
    """The location of the ledgers of one dataset, beside another dataset."""
    with server.client() as client:
        another = RedisLocation(client, dataset="sound", about=json.dumps(ABOUT))
        another.create(epoch=1, plan_hash="p", shards=[], done=[])
        yield RedisLocation(client, dataset=DATASET, about=json.dumps(ABOUT))


@pytest.fixture
def ledger(place: RedisLocation) -> RedisLedger:
    return create(place, 1)


def create(place: RedisLocation, epoch: int) -> RedisLedger:
    made = place.create(epoch=epoch, plan_hash="p", shards=shard_pair("0"), done=[])
    assert isinstance(made, RedisLedger)
    return made


def key_of(ledger: RedisLedger, name: str) -> str:
    (key,) = (key for key in ledger._keys if key.endswith(f":{name}"))
    return key


def shown_runs(server: RedisServer) -> list[str]:
    return sorted(run.run_id for run in runs_on(server.url))


def test_names_of_runs_that_are_no_text(
    server: RedisServer, admin: redis.Redis, ledger: RedisLedger, caplog: pytest.LogCaptureFixture
) -> None:
    admin.sadd(RUNS_KEY, b"\xff\xfe", b"")
    assert shown_runs(server) == [DATASET, "sound"]
    assert [one.levelno for one in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("member", NOT_EPOCHS)
def test_members_that_are_no_epochs_are_ignored(
    server: RedisServer, admin: redis.Redis, place: RedisLocation, member: bytes
) -> None:
    old = create(place, 1)
    admin.sadd(EPOCHS, member)
    (run,) = runs_on(server.url, only=DATASET)
    assert run.view is not None
    assert run.view.epoch == 1
    place.retire(before=2)
    with pytest.raises(LedgerLostError):
        old.counts(TASKS)


@pytest.mark.parametrize("field", ["epoch", "plan_hash", "run_id"])
def test_a_ledger_whose_own_facts_are_no_text_is_gone(
    server: RedisServer, admin: redis.Redis, place: RedisLocation, field: str
) -> None:
    admin.hset(key_of(create(place, 1), "meta"), field, b"\xff\xfe")
    assert place.open(1, "p") is None
    (run,) = runs_on(server.url, only=DATASET)
    assert run.view is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_tasks", MAX_TASKS + 1),
        ("num_tasks", -1),
        ("num_tasks", 1.5),
        ("device_classes", ["c"] * (MAX_CLASSES + 1)),
        ("device_classes", "c"),
        ("created_at", "\ud800"),
        ("plan_hash", ["\ud800"]),
        ("run_id", float("inf")),
    ],
)
def test_a_record_that_no_run_has_is_left_out_with_one_warning(
    server: RedisServer,
    admin: redis.Redis,
    ledger: RedisLedger,
    caplog: pytest.LogCaptureFixture,
    field: str,
    value: object,
) -> None:
    admin.set(f"llmperf:{{{DATASET}}}:about", json.dumps({**ABOUT, field: value}))
    assert shown_runs(server) == ["sound"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    told = record.getMessage()
    assert f"llmperf:{{{DATASET}}}:about" in told
    assert "refuses us" not in told


def test_a_run_in_a_folder_whose_name_is_no_text_is_shown(
    server: RedisServer, admin: redis.Redis, ledger: RedisLedger
) -> None:
    about = json.dumps({**ABOUT, "location": "/data/\udcff"})
    admin.set(f"llmperf:{{{DATASET}}}:about", about)
    (run,) = runs_on(server.url, only=DATASET)
    assert run.location == "/data/?"


def test_the_largest_run_is_shown(server: RedisServer, admin: redis.Redis, ledger) -> None:
    about = {**ABOUT, "num_tasks": MAX_TASKS - 1, "device_classes": ["c"]}
    admin.set(f"llmperf:{{{DATASET}}}:about", json.dumps(about))
    assert shown_runs(server) == [DATASET, "sound"]
    about["device_classes"] = [f"c{number}" for number in range(MAX_CLASSES)]
    admin.set(f"llmperf:{{{DATASET}}}:about", json.dumps(about))
    began_s = time.monotonic()
    assert shown_runs(server) == [DATASET, "sound"]
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("name", ["done", "board", "expiry", "meta", "about", "epochs"])
def test_one_run_with_keys_of_another_type_hides_no_other(
    server: RedisServer,
    admin: redis.Redis,
    ledger: RedisLedger,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    key = f"llmperf:{{{DATASET}}}:{name}" if name in ("about", "epochs") else key_of(ledger, name)
    admin.delete(key)
    admin.rpush(key, "x")
    assert shown_runs(server) == ["sound"]
    (record,) = caplog.records
    assert "another program has written to LLMPerf's keys" in record.getMessage()


def test_a_set_of_runs_of_another_type_ends_the_command(
    server: RedisServer, admin: redis.Redis
) -> None:
    admin.set(RUNS_KEY, "x")
    done = llmperf("status", "--ledger", server.url)
    assert_refused(done, Exit.BAD_INPUT, "WRONGTYPE", "another program has written")


@pytest.mark.parametrize(
    "report",
    [b"", b"not JSON", b"x {}", b"-5 {}", b"\xff", b"9" * 400 + b" {}", b"5", b"nan {}"],
)
def test_what_is_no_report_is_left_out(
    server: RedisServer, admin: redis.Redis, ledger: RedisLedger, report: bytes
) -> None:
    ledger.report("sound", '{"host": "h"}')
    admin.hset(key_of(ledger, "board"), b"foreign\xff", report)
    assert [one.worker for one in ledger.workers()] == ["sound"]
    assert shown_runs(server) == [DATASET, "sound"]
    ledger.report("another", "{}")
    assert [one.worker for one in ledger.workers()] == ["another", "sound"]


def test_a_report_that_is_no_text_is_shown_without_its_fields(
    server: RedisServer, admin: redis.Redis, ledger: RedisLedger
) -> None:
    now_us = round(time.time() * 1e6)
    admin.hset(key_of(ledger, "board"), b"w\xff", b"%d \xff{" % now_us)
    (report,) = ledger.workers()
    assert (report.worker, report.document) == ("w\ufffd", "\ufffd{")
    done = llmperf("status", "--ledger", server.url, "--json")
    assert done.code == Exit.DONE


def _claimed(ledger: RedisLedger) -> object:
    return claim(ledger, HOLDER, 2)


def _committed(ledger: RedisLedger) -> object:
    return ledger.commit(shards=shard_pair("1"), leases=[LEASE])


def _released(ledger: RedisLedger) -> object:
    return ledger.release([LEASE])


def _counted(ledger: RedisLedger) -> object:
    return ledger.counts(TASKS)


def _held(ledger: RedisLedger) -> object:
    return ledger.holdings(TASKS)


def _elected(ledger: RedisLedger) -> object:
    return ledger.elect_publisher(holder=HOLDER, ttl_s=60)


def _checked(ledger: RedisLedger) -> object:
    return ledger.check_names([], checker="c", number=2, after=1)


FIELDS: list[tuple[str, str, Callable[[RedisLedger], object]]] = [
    ("meta", "last_token", _claimed),
    ("meta", "last_token", _committed),
    ("meta", "last_token", _released),
    ("meta", "longest_ttl_us", _claimed),
    ("meta", "longest_ttl_us", _counted),
    ("meta", "longest_ttl_us", _held),
    ("meta", "checked:c", _checked),
    ("cursors", "0", _claimed),
    ("publisher", "expires_us", _elected),
    ("publisher", "ttl_us", _elected),
    ("leases", "0", _held),
]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("name", "field", "call"), FIELDS)
def test_a_number_that_no_ledger_writes_is_told(
    admin: redis.Redis,
    ledger: RedisLedger,
    name: str,
    field: str,
    call: Callable[[RedisLedger], object],
    junk: bytes,
) -> None:
    claim(ledger, HOLDER)
    ledger.elect_publisher(holder=OTHER, ttl_s=60)
    admin.hset(key_of(ledger, name), field, junk)
    with pytest.raises(LedgerForeignError, match=rf"FOREIGN value in .*:{name}: another program"):
        call(ledger)


@pytest.mark.parametrize("call", [_claimed, _committed, _released])
def test_tokens_are_not_given_anew(
    admin: redis.Redis, ledger: RedisLedger, call: Callable[[RedisLedger], object]
) -> None:
    assert claim(ledger, HOLDER) == [LEASE]
    admin.hdel(key_of(ledger, "meta"), "last_token")
    with pytest.raises(LedgerForeignError, match="FOREIGN value"):
        call(ledger)


@pytest.mark.parametrize("junk", [*JUNK, b"21"])
@pytest.mark.parametrize(("name", "score"), [("expiry", 5), ("free", 5)])
def test_a_task_that_no_plan_has_is_never_leased(
    admin: redis.Redis, ledger: RedisLedger, name: str, score: int, junk: bytes
) -> None:
    admin.zadd(key_of(ledger, name), {junk: score})
    if (name, junk) == ("expiry", b"21"):
        assert tasks_of(claim(ledger, HOLDER, 3)) == [0, 1, 2], "it may be of another device class"
        return
    with pytest.raises(LedgerForeignError, match="another program"):
        claim(ledger, HOLDER)


@pytest.mark.parametrize("cursor", ["3", "9", "21", "99999"])
def test_a_cursor_outside_of_its_tasks_is_told(
    admin: redis.Redis, ledger: RedisLedger, cursor: str
) -> None:
    admin.hset(key_of(ledger, "cursors"), "10", cursor)
    with pytest.raises(LedgerForeignError, match="another program"):
        ledger.claim(holder=HOLDER, tasks=range(10, 20), limit=1, ttl_s=60)


@pytest.mark.parametrize("lease", [b"", b"x", b"\xff", b"1:x:h", b"1::h", b"::"])
def test_a_freed_lease_that_no_ledger_writes(
    admin: redis.Redis, ledger: RedisLedger, lease: bytes
) -> None:
    leases = claim(ledger, HOLDER)
    ledger.release(leases)
    admin.hset(key_of(ledger, "leases"), "0", lease)
    with pytest.raises(LedgerForeignError, match="another program"):
        claim(ledger, HOLDER)
    with pytest.raises(LedgerLostError):  # a script that stopped halfway ends the ledger
        claim(ledger, HOLDER)


@pytest.mark.parametrize(
    "entry",
    [
        b"", b"\xff", b"{", b"[]", b"1", b"null", b"[" * 100_000, b"{}",
        b'{"rows": -1, "bytes": 1, "sha256": "", "tasks": 1}',
        b'{"rows": "1", "bytes": 1, "sha256": "", "tasks": 1}',
        b'{"rows": 1, "bytes": 1, "sha256": "\\ud800", "tasks": 1}',
        b'{"rows": 1, "bytes": 1, "sha256": 5, "tasks": 1}',
    ],
)  # fmt: skip
def test_an_entry_that_is_no_shard(admin: redis.Redis, ledger: RedisLedger, entry: bytes) -> None:
    (lease,) = claim(ledger, HOLDER)
    assert ledger.commit(shards=shard_pair("1"), leases=[lease]) == Committed()
    name = shard_pair("1")[0].name
    admin.hset(key_of(ledger, "shards"), name, entry)
    for call in (ledger.shards, ledger.unpublished):
        with pytest.raises(LedgerForeignError, match=f"the entry of the shard .*{name}"):
            call()


@pytest.mark.parametrize("entry", [b"", b"\xff", b"{", b"1", b"null", b"[" * 100_000])
def test_a_commit_beside_an_entry_that_is_no_json(
    admin: redis.Redis, ledger: RedisLedger, entry: bytes
) -> None:
    leases = claim(ledger, HOLDER)
    admin.hset(key_of(ledger, "shards"), shard_pair("1")[0].name, entry)
    with pytest.raises(LedgerForeignError, match="another program"):
        ledger.commit(shards=shard_pair("1"), leases=leases)
    assert admin.getbit(key_of(ledger, "done"), 0) == 0


def test_a_name_of_a_shard_that_is_no_text(admin: redis.Redis, ledger: RedisLedger) -> None:
    admin.hset(key_of(ledger, "shards"), b"kernels/\xff", b"{}")
    with pytest.raises(LedgerForeignError, match="the entry of the shard"):
        ledger.shards()


def test_an_unpublished_shard_without_an_entry(admin: redis.Redis, ledger: RedisLedger) -> None:
    admin.zadd(key_of(ledger, "unpublished"), {"kernels/x": 0})
    with pytest.raises(LedgerForeignError, match="another program"):
        ledger.unpublished()


def test_a_holder_that_is_no_text(admin: redis.Redis, ledger: RedisLedger) -> None:
    claim(ledger, HOLDER)
    admin.hset(key_of(ledger, "leases"), "0", b"1:1:h\xff/7/b/1")
    (holding,) = ledger.holdings(TASKS)
    assert holding.holder == "h\ufffd/7"
