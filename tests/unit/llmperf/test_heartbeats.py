"""Heartbeats that other programs wrote into a ledger: what does not fit is left out."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from rich.console import Console

from llmperf.cli.status_screen import MOST_SHOWN, lines_of, screen_of
from llmperf.heartbeats import LONGEST_TEXT, heartbeat_of
from llmperf.run_state import run_state
from llmperf_common.ledger.looking import LedgerView
from llmperf_common.ledger.protocol import LONGEST_REPORT, MOST_REPORTS, TaskCounts, WorkerReport

HUGE = 10**400
WORDS = ("worker", "host", "seat", "device_class", "state", "why", "last_error", "started_at")
COUNTS = ("ok", "tasks_done", "tasks_in_hand", "pid")
RATES = ("ok_per_s", "tasks_per_s", "ok_per_s_overall", "seconds")
READINGS = ("busy_share", "throttled_share", "temperature_c")
STRANGE: tuple[Any, ...] = (
    None, True, HUGE, -HUGE, 1e308, -1e308, 5e-324, -1, 2**64, "", "x", "\ud800", "x" * 10_000, [], [1], {}, {"a": 1},
    {"a": HUGE}, {"a": None}, [{"seat": 1}], [{"seat": {"a": 1}, "state": 5, "why": None}], [[["x"]]], ["x"] * 1000,
)  # fmt: skip


def report(name: str = "w", age_s: float = 1.0, **told: Any) -> WorkerReport:
    return WorkerReport(worker=name, age_s=age_s, document=json.dumps(told))


def state_of(*workers: WorkerReport) -> dict[str, Any]:
    return run_state(
        location="d", ledger="sqlite", plan_hash="p", created_at="", num_tasks=4, device_classes=["c"], published=None,
        view=LedgerView(epoch=1, counts=(TaskCounts(done=1, leased=1, total=4),), workers=workers),
    )  # fmt: skip


def shown(state: dict[str, Any]) -> str:
    page = io.StringIO()
    Console(file=page, width=200).print(screen_of([state]), markup=False)
    return "\n".join(lines_of([state])) + page.getvalue() + json.dumps(state, allow_nan=False)


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize(
    "field",
    [*WORDS, *COUNTS, *RATES, *READINGS, "role", "failed", "seats", "not_collecting", "missing_labels", "live", "age_s"],
)  # fmt: skip
def test_a_strange_value_is_shown_beside_a_good_one(field: str, value: Any) -> None:
    good = {"host": "a", "seat": "s", "device_class": "c", "tasks_per_s": 0.5, "ok": 3}
    for role in ("worker", "driver"):
        document = json.dumps({"role": role, **good, field: value})
        strange = WorkerReport(worker="w1", age_s=1.0, document=document)
        assert len(shown(state_of(strange, report("w2", **good)))) < 20_000


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"ok": 3, "ok_per_s": 2, "pid": 7}, {"ok": 3, "ok_per_s": 2, "pid": 7}),
        ({"ok": None, "tasks_done": True, "ok_per_s": HUGE, "host": None, "live": "x"}, {}),
        ({"busy_share": None, "temperature_c": 61.5}, {"busy_share": None, "temperature_c": 61.5}),
        ({"tasks_per_s": 5e-324}, {"tasks_per_s": 0.0}),
        ({"failed": {"hang": 2}}, {"failed": {"hang": 2}}),
        ({"failed": {"hang": 2, "no code": 1}}, {"failed": {"hang": 2}}),
        ({"failed": {"hang": 2, **{f"new {n}": 1 for n in range(50)}}}, {"failed": {"hang": 2}}),
        ({"failed": {"hang": 2, "no code": None}}, {"failed": {"hang": 2}}),
        ({"failed": {"hang": -1}}, {}),
        ({"an": "unknown field"}, {}),
        ({"why": "x" * 5000}, {"why": "x" * LONGEST_TEXT}),
        (
            {"not_collecting": [{"seat": "s", "state": "gone", "why": "w", "more": 1}]},
            {"not_collecting": [{"seat": "s", "state": "gone", "why": "w"}]},
        ),
        ({"not_collecting": [{"seat": "s", "state": 5, "why": "w"}]}, {}),
    ],
)
def test_fields_that_fit_are_kept(told: dict[str, Any], kept: dict[str, Any]) -> None:
    expected = {"worker": "w", **kept, "age_s": 1.0, "stale": False, "live": True}
    assert heartbeat_of(report(**told)) == expected


@pytest.mark.parametrize("worker", [None, 5, b"\xff", "x" * 10_000])
def test_the_name_of_a_worker_is_a_text(worker: Any) -> None:
    found = heartbeat_of(WorkerReport(worker=worker, age_s=1.0, document="{}"))
    assert isinstance(found["worker"], str)
    assert len(found["worker"]) <= LONGEST_TEXT


@pytest.mark.parametrize(
    "document", ["{", "[]", "null", "", None, b"{}", 5, '{"ok": NaN}', "\ud800"]
)
def test_a_document_that_cannot_be_read_says_nothing(document: Any) -> None:
    found = heartbeat_of(WorkerReport(worker="w", age_s=1.0, document=document))
    assert found == {"worker": "w", "age_s": 1.0, "stale": False, "live": True}


def test_a_long_document_is_not_parsed() -> None:
    assert "ok" not in heartbeat_of(report(ok=1, seat="x" * LONGEST_REPORT))


def test_the_newest_of_many_workers_are_shown_soon() -> None:
    many = [
        report(f"w{n}", age_s=n / 1000, seat="s" * 90 + str(n), why="y" * 300)
        for n in range(20_000)
    ]
    state = state_of(*many)
    assert len(state["workers"]) == MOST_REPORTS
    assert state["workers"][0]["worker"] == "w0"
    began_s = time.process_time()
    text = shown(state)
    assert time.process_time() - began_s < 20
    assert f"and {MOST_REPORTS - MOST_SHOWN:,} more workers" in text
    assert len(lines_of([state])) == MOST_SHOWN + 2


def test_one_long_name_is_shown_soon() -> None:
    began_s = time.process_time()
    shown(state_of(report(seat="x" * 700_000), report(seat="y" * 15_000)))
    assert time.process_time() - began_s < 5
