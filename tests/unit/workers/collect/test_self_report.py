"""What a worker tells of itself, from a clock and results alone."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import TaskResult
from tests.support.factories.dataset_factory import (
    make_device,
    make_failure,
    make_kernel,
    make_result,
    make_timing,
)
from workers.collect.self_report import SelfReport, WorkerState
from workers.device.nvidia.monitor import Reading


class Clock:
    """Goes on when told."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def report_of(clock: Clock, **context: str) -> SelfReport:
    return SelfReport(
        worker_id="node-1/42",
        device=make_device(),
        context=context,
        read=lambda: Reading(at_s=0.0, temperature_c=61.0, busy_share=0.9),
        clock_s=clock,
    )


def lease(task: int) -> Lease:
    return Lease(task=task, epoch=1, token=task, attempt=1)


def result(number: int, *, throttled: bool = False) -> TaskResult:
    timing = dataclasses.replace(make_timing(), throttled=throttled)
    return make_result(make_kernel(number), [timing, timing, make_failure()])


def test_rates_are_of_the_last_minute_and_overall() -> None:
    clock = Clock()
    report = report_of(clock, seat="s", actor_id="a")
    clock.now_s += 10
    report.committed("x", [result(0), result(1)], 1)
    now = report.document()
    assert (now["ok"], now["failed"], now["tasks_done"]) == (4, {"hang": 2}, 2)
    assert (now["ok_per_s"], now["ok_per_s_overall"], now["tasks_per_s"]) == (0.4, 0.4, 0.2)
    clock.now_s += 190
    now = report.document()
    assert (now["ok_per_s"], now["ok_per_s_overall"], now["tasks_per_s"]) == (0.0, 0.02, 0.0)
    assert (now["host"], now["pid"], now["seat"], now["actor_id"]) == ("node-1", 42, "s", "a")
    assert (now["temperature_c"], now["busy_share"]) == (61.0, 0.9)


def test_what_is_in_hand_follows_claims_results_and_losses() -> None:
    report = report_of(Clock())
    for number in range(3):
        task: Any = type("SomeTask", (), {"task_id": f"t{number}"})
        report.claimed(task, lease(number))
    report.finished(lease(0), result(0, throttled=True))
    assert report.tasks_in_hand == ["t1", "t2"]
    report.lost([1], "the lease ran out")
    now = report.document()
    assert (now["tasks_in_hand"], now["last_error"]) == (1, "1 tasks given up: the lease ran out")
    assert now["throttled_share"] == 1.0
    report.refused("stem", [1, 2])
    assert "2 of its tasks" in report.document()["last_error"]
    report.ends(WorkerState.ENDED, "interrupted")
    assert (report.tasks_in_hand, report.document()["tasks_in_hand"]) == ([], 0), "given back"


def test_the_end_is_told_and_the_document_stays_small() -> None:
    report = report_of(
        Clock(), seat="x" * 80, actor_id="a" * 32, node_id="n" * 56, job_id="01000000"
    )
    assert report.document()["state"] == "collecting"
    report.note_error("é" * 5000)
    report.ends(WorkerState.FAILED, "first line\n" + "traceback " * 1000)
    told = report.document()
    assert (told["state"], told["why"]) == ("failed", "first line")
    assert len(json.dumps(told, ensure_ascii=False).encode()) < 2048
    assert WorkerState.FAILED.is_final
    assert not WorkerState.COLLECTING.is_final
