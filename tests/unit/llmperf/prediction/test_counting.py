"""Counting in groups: what was counted is kept, and counting ends where it is of no use."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from llmperf.prediction.counting import WorkCounter
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.store.files.filesystem import StoreError
from tests.unit.common.store.upkeep.test_work_columns import WORK
from trainer.prediction.request import CountedLaunches
from workers.work import children

FAILED = Failure(code=FailureCode.HANG, stage=Stage.LAUNCH, detail="took too long")
ANALYST: Any = SimpleNamespace(
    cpu_device=lambda _what_for: SimpleNamespace(name="a CPU"), progress=lambda _line: None
)


def counted(monkeypatch: pytest.MonkeyPatch, *groups: Any) -> tuple[CountedLaunches, list[int]]:
    """Return what is known of six launches, two a group, and the number of launches in each asked group."""
    answers, asked = iter(groups), []

    def count_work(_kernel: object, configs: Sequence[object], *_: Any, **__: Any) -> Any:
        asked.append(len(configs))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(children, "count_work", count_work)
    monkeypatch.setattr("llmperf.prediction.counting._LAUNCHES_AT_ONCE", 2)
    kernel: Any = SimpleNamespace(name="k")
    launches: Any = list(range(6))
    return WorkCounter(analyst=ANALYST).of(kernel)(launches), asked


def test_all_launches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = counted(monkeypatch, (WORK, WORK), (WORK, FAILED), (WORK, WORK))
    assert found.work == [WORK, WORK, WORK, None, WORK, WORK]
    assert found.why == "took too long"
    assert asked == [2, 2, 2]


def test_counting_ends_after_a_group_without_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = counted(monkeypatch, (WORK, WORK), (FAILED, FAILED))
    assert found.work == [WORK, WORK, None, None, None, None]
    assert found.why == "took too long"
    assert asked == [2, 2]


def test_a_full_disk_keeps_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = counted(monkeypatch, (WORK, WORK), StoreError("the disk is full"))
    assert found.work == [WORK, WORK, None, None, None, None]
    assert found.why == "the disk is full"
    assert asked == [2, 2]


def test_of_a_traceback_the_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    report = 'Traceback (most recent call last):\n  File "/home/me/child.py"\nOSError: [Errno 30] read-only\n'
    failure = Failure(code=FailureCode.INTERNAL_ERROR, stage=Stage.PROBE, detail=report)
    found, _ = counted(monkeypatch, (failure, failure))
    assert found.why == "internal error: OSError: [Errno 30] read-only"
