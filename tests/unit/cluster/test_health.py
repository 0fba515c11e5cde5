"""When a GPU is drained, and what is no reason to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from cluster.config import ClusterConfig
from cluster.pool.health import DrainRule
from cluster.pool.reports import DrainCause
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Outcome, TaskResult
from tests.support.factories.dataset_factory import make_kernel, make_result, make_timing

LEASE = Lease(task=0, epoch=1, token=1, attempt=1)
FAULT = Failure(code=FailureCode.DEVICE_FAULT, stage=Stage.LAUNCH, detail="fault")


class Watched:
    """A rule that receives tasks, and what it said."""

    def __init__(self, *, baseline_ns: float | None = None, is_cpu: bool = False) -> None:
        self.said: list[str] = []
        self.causes: list[DrainCause] = []
        self.now_s = 0.0
        self.rule = DrainRule(
            ClusterConfig(),
            self._drain,
            baseline_ns=baseline_ns,
            drains_for_drift=not is_cpu,
            clock_s=lambda: self.now_s,
        )

    def _drain(self, cause: DrainCause, reason: str) -> None:
        self.causes.append(cause)
        self.said.append(reason)

    def tell(
        self, outcomes: Sequence[Outcome], *, at_s: float = 0.0, sentinel_ns: float = 5_000.0
    ) -> None:
        result: TaskResult = make_result(make_kernel(), outcomes)
        self.now_s = at_s
        sentinel = tuple(dataclasses.replace(one, median_ns=sentinel_ns) for one in result.sentinel)
        self.rule.finished(LEASE, dataclasses.replace(result, sentinel=sentinel))


def timings(count: int, *, throttled: bool | None) -> list[Outcome]:
    return [dataclasses.replace(make_timing(), throttled=throttled) for _ in range(count)]


def test_a_card_that_throttles_for_minutes_is_drained_once() -> None:
    watched = Watched()
    for second in range(0, 200, 10):
        watched.tell(timings(50, throttled=True), at_s=second)
    assert watched.said == ["throttled in 100% of its last 601 samples (120 s)"]


def test_a_few_kernels_that_throttle_their_card_are_no_reason() -> None:
    watched = Watched()
    for second in range(0, 300, 10):
        watched.tell(timings(600, throttled=second == 150), at_s=second)
    assert watched.said == []


def test_two_minutes_are_not_judged_by_a_handful_of_samples() -> None:
    watched = Watched()
    for minute in range(49):
        watched.tell(timings(10, throttled=True), at_s=60 * minute)
    assert watched.said == []
    watched.tell(timings(10, throttled=True), at_s=60 * 49)
    assert watched.said == ["throttled in 100% of its last 500 samples (2940 s)"]


def test_what_cannot_be_told_is_no_throttling() -> None:
    watched = Watched()
    for second in range(0, 300, 10):
        watched.tell(timings(100, throttled=None), at_s=second)
    assert watched.said == []


def test_a_drifting_sentinel_drains() -> None:
    watched = Watched()
    for _ in range(5):
        watched.tell(timings(1, throttled=False))
    for _ in range(2):
        watched.tell(timings(1, throttled=False), sentinel_ns=7_000.0)
    assert watched.said == [], "medians of five"
    watched.tell(timings(1, throttled=False), sentinel_ns=7_000.0)
    assert watched.said == ["its sentinel kernel takes 40% longer than at first"]
    assert watched.causes == [DrainCause.DRIFT]
    assert watched.rule.baseline_ns == 5_000.0


def test_a_cpu_device_is_not_drained_for_drift(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(is_cpu=True)
    for time_ns in [5_000.0] * 5 + [9_000.0] * 20:
        watched.tell(timings(1, throttled=False), sentinel_ns=time_ns)
    assert watched.said == []
    assert [record.getMessage() for record in caplog.records] == [
        "the sentinel kernel takes 80 % longer than at first, perhaps because other "
        "processes use the CPU; collection goes on, because a CPU device is never drained "
        "for this reason"
    ]


def test_after_a_pause_the_first_reading_says_whether_the_device_is_as_fast_again() -> None:
    slow = Watched(baseline_ns=5_000.0)
    slow.tell(timings(1, throttled=False), sentinel_ns=7_000.0)
    assert slow.causes == [DrainCause.DRIFT]
    assert not slow.rule.is_steady
    fast = Watched(baseline_ns=5_000.0)
    fast.tell(timings(1, throttled=False), sentinel_ns=5_500.0)
    assert fast.rule.is_steady
    for _ in range(3):
        fast.tell(timings(1, throttled=False), sentinel_ns=8_000.0)
    assert fast.said == [], "from then on medians of five"
    fast.tell(timings(1, throttled=False), sentinel_ns=8_000.0)
    assert fast.said == ["its sentinel kernel takes 60% longer than at first"], "of the first actor"


@pytest.mark.parametrize("num_tasks", [19, 20])
def test_only_faults_in_a_row_drain(num_tasks: int) -> None:
    watched = Watched()
    watched.tell([FAULT])
    watched.tell(timings(1, throttled=False))
    for _ in range(num_tasks):
        watched.tell([FAULT, FAULT])
    assert bool(watched.said) == (num_tasks == 20)
