"""The heartbeats of collecting processes in their ledger, and looking at it from outside."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.ledger.holder import boot_clock_s, this_process
from llmperf_common.ledger.looking import look_at_sqlite
from llmperf_common.ledger.protocol import LedgerAwayError, TaskCounts
from tests.support.collecting import Collect, replay_file, wait_until, write_kernels
from tests.support.contracts.ledger_contract import claim
from workers.collect.event_logging import logging_taken
from workers.collect.events import EventLog
from workers.collect.heartbeat import HeartbeatWriter

FAST = (
    "--samples-per-kernel", "6",
    "--set", "timing.spin_up_ms=0",
    "--set", "store.commit_interval_s=0.1",
    "--set", "store.publish_interval_s=0.1",
)  # fmt: skip
KEYS = {
    "worker", "host", "pid", "device", "device_class", "device_uuid", "started_at", "state", "why", "ok", "failed",
    "ok_per_s", "ok_per_s_overall", "tasks_per_s", "tasks_done", "tasks_in_hand", "busy_share", "temperature_c",
    "throttled_share", "last_error", "seconds",
}  # fmt: skip


def heartbeats(dataset: Path, num_tasks: int) -> list[dict[str, Any]]:
    """The heartbeats in a dataset's SQLite ledger."""
    view = look_at_sqlite(dataset / "ledger", [range(num_tasks)], now_s=boot_clock_s())
    return [json.loads(one.document) for one in view.workers] if view else []


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder with the hash of its bytes."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_a_collector_reports_while_it_runs_and_at_its_end(tmp_path: Path) -> None:
    names = [f"k{n}" for n in range(8)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.02} for name in names]
    corpus = write_kernels(tmp_path / "kernels", names)
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    process = Collect(corpus, tmp_path / "data", device, FAST).start()
    wait_until(lambda: any(one["tasks_done"] for one in heartbeats(tmp_path / "data", 8)))
    (during,) = heartbeats(tmp_path / "data", 8)
    assert set(during) == KEYS
    assert (during["state"], during["pid"], during["device_class"]) == (
        "collecting",
        process.pid,
        "replay",
    )
    assert during["ok"] == 6 * during["tasks_done"]
    assert during["ok_per_s"] > 0
    _, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    (last,) = heartbeats(tmp_path / "data", 8)
    assert (last["state"], last["why"], last["ok"], last["failed"]) == ("ended", "complete", 48, {})
    assert (last["tasks_done"], last["tasks_in_hand"]) == (8, 0)
    assert len(json.dumps(last)) < 2048


@pytest.mark.slow
def test_a_collector_that_fails_says_why_in_its_heartbeat(tmp_path: Path) -> None:
    names = [f"k{n}" for n in range(6)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.03} for name in names]
    corpus = write_kernels(tmp_path / "kernels", names)
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    data = tmp_path / "data"
    process = Collect(corpus, data, device, FAST).start()
    wait_until(lambda: any((data / "samples").glob("*.parquet")))
    for folder in ("samples", "kernels"):  # nothing can be written any more
        (data / folder).rename(data / f"{folder}.away")
        (data / folder).write_text("in the way")
    process.communicate(timeout=100)
    assert process.returncode == 3
    (last,) = heartbeats(data, 6)
    assert last["state"] == "failed"
    assert str(data) in last["why"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A ledger of six tasks at work: one committed nothing yet, two leased, one report."""
    ledger = SqliteLocation(tmp_path / "ledger").create(
        epoch=4, plan_hash="p", shards=[], done=[(5, "s")]
    )
    claim(ledger, this_process(), 2)
    ledger.report("h/1", "{}")
    yield tmp_path / "ledger"
    ledger.close()


def test_looking_leaves_no_trace_and_stops_nobody(folder: Path) -> None:
    before = contents(folder)
    assert "ledger-000004.sqlite-wal" in before
    view = look_at_sqlite(folder, [range(3), range(3, 6)], now_s=boot_clock_s())
    assert view is not None
    assert view.epoch == 4
    assert view.counts == (
        TaskCounts(done=0, leased=2, total=3),
        TaskCounts(done=1, leased=0, total=3),
    )
    assert [one.worker for one in view.workers] == ["h/1"]
    assert set(contents(folder)) == set(before)
    del before["ledger-000004.sqlite-shm"]  # a reader's mark, in memory
    assert before.items() <= contents(folder).items()


def test_looking_reads_beside_a_writer_in_its_transaction(folder: Path) -> None:
    with sqlite3.connect(folder / "ledger-000004.sqlite", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert look_at_sqlite(folder, [range(6)], now_s=boot_clock_s()) is not None
        writer.execute("COMMIT")
    writer.close()


def test_looking_at_a_ledger_that_nobody_has_open(tmp_path: Path) -> None:
    ledger_location = SqliteLocation(tmp_path)
    assert look_at_sqlite(tmp_path, [], now_s=0) is None
    ledger = ledger_location.create(epoch=4, plan_hash="p", shards=[], done=[(0, "s")])
    claim(ledger, this_process(), 1)
    ledger.close()
    before = contents(tmp_path)
    view = look_at_sqlite(tmp_path, [range(6)], now_s=boot_clock_s())
    assert view is not None
    assert (view.counts[0].done, view.workers) == (1, ())
    assert contents(tmp_path) == before
    assert list(before) == ["ledger-000004.sqlite"]


def test_looking_at_something_else_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "ledger-000001.sqlite").write_bytes(b"no database" * 100)
    assert look_at_sqlite(tmp_path, [range(6)], now_s=0) is None
    assert look_at_sqlite(tmp_path / "nowhere", [range(6)], now_s=0) is None


class RefusingLedger:
    """A ledger that takes no report."""

    def __init__(self) -> None:
        self.num_asked = 0

    def report(self, worker: str, document: str) -> None:
        self.num_asked += 1
        raise LedgerAwayError("away")


class Standing:
    """A report that never changes."""

    def document(self) -> dict[str, Any]:
        return {"state": "collecting"}


def test_a_report_that_fails_disturbs_nobody_and_is_not_repeated_at_once() -> None:
    now_s = 100.0
    report: Any = Standing()
    ledger: Any = RefusingLedger()
    heard: list[Any] = []
    writer = HeartbeatWriter(report, worker_id="h/1", clock_s=lambda: now_s, heard=heard.append)
    writer.tell(ledger)
    now_s = 110.0
    writer.tell(ledger)
    assert ledger.num_asked == 1
    now_s = 140.0
    writer.tell(ledger)
    writer.tell(ledger, is_last=True)
    assert ledger.num_asked == 3
    assert heard == [{"state": "collecting"}] * 3


def test_what_is_logged_is_in_the_event_log(tmp_path: Path) -> None:
    path = tmp_path / "events" / "w.jsonl"
    told: list[str] = []
    with logging_taken() as logs:
        logging.getLogger("workers.early").warning("before the log is %s", "open")
        logging.getLogger("workers.early").info("not worth it")
        assert logs.has_waiting
        log = EventLog(path, worker_id="h/1", context={"actor_id": "a"})
        with logs.writing_to(log, tasks_in_hand=lambda: ["t1"], told=told.append):
            logging.getLogger("workers.x").error("bad %d", 7, extra={"task_id": "t9"})
            try:
                raise ValueError("inside")
            except ValueError:
                logging.getLogger("workers.x").exception("it failed")
        log.close()
        logging.getLogger("workers.late").warning("after")
        assert logs.has_waiting
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["event"], one["level"], one["logger"]) for one in lines] == [
        ("log", "warning", "workers.early"),
        ("log", "error", "workers.x"),
        ("log", "error", "workers.x"),
    ]
    assert [one["message"].partition("\n")[0] for one in lines] == [
        "before the log is open",
        "bad 7",
        "it failed",
    ]
    assert "ValueError: inside" in lines[2]["message"]
    assert lines[1]["task_id"] == "t9"
    assert all(one["tasks_in_hand"] == ["t1"] for one in lines)
    assert all((one["worker_id"], one["actor_id"]) == ("h/1", "a") for one in lines)
    assert told[1] == "bad 7"
