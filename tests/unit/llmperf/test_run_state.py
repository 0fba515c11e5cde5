"""The state of a run and its words, from values alone."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from llmperf.cli.status_screen import lines_of, screen_of
from llmperf.heartbeats import STALE_S
from llmperf.run_state import Published, is_complete, run_state
from llmperf_common.ledger.looking import LedgerView
from llmperf_common.ledger.protocol import TaskCounts, WorkerReport


def worker(name: str, age_s: float = 1.0, **told: Any) -> WorkerReport:
    document = {
        "worker": name, "host": name.split("/", maxsplit=1)[0], "state": "collecting", "device_class": "h200", "ok": 600,
        "failed": {"hang": 2}, "ok_per_s": 10.0, "tasks_per_s": 0.5, "tasks_done": 9, "tasks_in_hand": 3,
        "busy_share": 0.97, "temperature_c": 61.0, "throttled_share": 0.0, "last_error": "", "why": "",
    } | told  # fmt: skip
    return WorkerReport(worker=name, age_s=age_s, document=json.dumps(document))


def state_of(*workers: WorkerReport, published: Published | None = None) -> dict[str, Any]:
    counts = (TaskCounts(done=40, leased=6, total=50), TaskCounts(done=50, leased=0, total=50))
    return run_state(
        location="/data/run",
        ledger="redis://head:6379/0",
        plan_hash="p",
        created_at="2026-01-01T00:00:00+00:00",
        num_tasks=100,
        device_classes=["a100", "h200"],
        published=published,
        view=LedgerView(epoch=3, counts=counts, workers=workers),
    )


def test_rows_and_rates_are_summed_over_the_right_workers() -> None:
    state = state_of(
        worker("n1/1", device_class="a100"),
        worker("n1/2", device_class="a100"),
        worker("n2/1", age_s=STALE_S + 1),
        worker("n2/2", age_s=3000, state="ended"),
    )
    assert (state["tasks"], state["tasks_done"], state["tasks_leased"]) == (100, 90, 6)
    assert (state["ok"], state["failed"], state["rows_from"]) == (2400, {"hang": 8}, "reports")
    assert (state["ok_per_s"], state["eta_s"]) == (20.0, 10.0)
    assert [one["stale"] for one in state["workers"]] == [False, False, True, False]
    assert [one["first_task"] for one in state["classes"]] == [0, 50]
    assert not is_complete(state)


def test_the_manifest_counts_where_it_can_be_seen() -> None:
    published = Published(manifest=9, epoch=3, num_tasks=88, statuses={"ok": 7, "hang": 1})
    state = state_of(worker("n1/1"), published=published)
    assert (state["tasks_done"], state["ok"], state["failed"]) == (88, 7, {"hang": 1})
    assert state["eta_s"] is None  # no live worker of the class that has tasks left


def test_a_report_that_is_no_json_is_a_worker_all_the_same() -> None:
    state = state_of(WorkerReport(worker="n1/1", age_s=1.0, document="{"))
    assert state["workers"] == [{"worker": "n1/1", "age_s": 1.0, "stale": False, "live": True}]
    assert lines_of([state])


def test_the_words_name_what_an_operator_looks_for() -> None:
    state = state_of(
        worker("n1/1", seat="n1:abc/gpu0", last_error="2 tasks given up: x"),
        worker("n2/1", age_s=99.0),
        worker("n3/1", state="drained", why="throttled in 80%"),
    )
    lines = lines_of([state])
    assert "90 of 100 tasks, 6 leased, 1,800 ok samples" in lines[0]
    assert "collecting now" in lines[0]
    assert (
        "n1:abc/gpu0  h200  collecting  600 ok  10.0 ok/s  9 tasks  3 in hand  97% busy  61 C"
        in lines[1]
    )
    assert "2 tasks given up" in lines[1]
    assert "STALE" in lines[2]
    assert "99 s ago" in lines[2]
    assert "throttled in 80%" in lines[3]
    screen = io.StringIO()
    Console(file=screen, width=200).print(screen_of([state]))
    for word in (
        "STALE",
        "drained",
        "n1:abc/gpu0",
        "a100: 40 of 50 tasks (0-49)",
        "throttled in 80%",
    ):
        assert word in screen.getvalue()


def test_the_driver_tells_of_slots_that_never_reached_the_ledger() -> None:
    driver = {
        "role": "driver", "host": "head", "pid": 7, "state": "collecting", "seats": {"running": 7, "drained": 1},
        "not_collecting": [{"seat": "n4:ab/gpu0", "state": "drained", "why": "no OpenCL device"}],
        "missing_labels": ["no node has the labels pool=x"],
    }  # fmt: skip
    state = state_of(
        worker("n1/1"), WorkerReport(worker="driver/head/7", age_s=1.0, document=json.dumps(driver))
    )
    assert [one["worker"] for one in state["workers"]] == ["n1/1"]
    lines = lines_of([state])
    assert "driver head/7  collecting  slots: 1 drained, 7 running" in lines[1]
    assert "n4:ab/gpu0  drained  no OpenCL device" in lines[2]
    assert "no node has the labels pool=x" in lines[3]


def test_a_server_without_the_ledger_is_told() -> None:
    state = run_state(
        location="d", ledger="redis://h", plan_hash="p", created_at="", num_tasks=4, device_classes=["x"],
        published=None, view=None,
    )  # fmt: skip
    assert "the Redis server was wiped or restarted" in lines_of([state])[0]
    assert lines_of([]) == ["no run in this ledger"]
