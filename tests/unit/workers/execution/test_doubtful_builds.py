"""Which finished tasks wait for a kernel that can be built, and for how long."""

from __future__ import annotations

import dataclasses

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from tests.support.factories.dataset_factory import good_outcome, make_kernel, make_result
from workers.execution.doubtful_builds import DoubtfulBuilds, NothingCompilesError
from workers.execution.executor import FinishedTask


def task(number: int, code: FailureCode | None = None) -> FinishedTask:
    """A finished task: timed, or failed before any launch config."""
    kernel = make_kernel(number)
    if code is not None:
        failure = Failure(code=code, stage=Stage.BUILD, detail=f"why {number}")
        kernel = dataclasses.replace(kernel, failure=failure)
    lease = Lease(task=number, epoch=1, token=number + 1, attempt=1)
    return FinishedTask(lease=lease, result=make_result(kernel, [good_outcome(0, 0)]))


def tasks(items: list[FinishedTask]) -> list[int]:
    return [item.lease.task for item in items]


@pytest.mark.parametrize(
    "code", ["build_error", "build_timeout", "compiler_crash", "internal_error"]
)
def test_what_could_not_be_built_waits_for_the_first_that_was(code: str) -> None:
    held = DoubtfulBuilds(lambda: False)
    assert held.sift([task(0, FailureCode(code)), task(1, FailureCode(code))]) == []
    assert [lease.task for lease in held.leases] == [0, 1]
    assert tasks(held.sift([task(2), task(3, FailureCode(code))])) == [0, 1, 2, 3]
    assert len(held) == 0
    assert tasks(held.sift([task(4, FailureCode(code))])) == [4], "it is known by now"


def test_what_no_machine_is_at_fault_for_does_not_wait() -> None:
    held = DoubtfulBuilds(lambda: False)
    assert tasks(held.sift([task(0, FailureCode.UNSUPPORTED)])) == [0]
    assert held.settle() == []


def test_a_kernel_that_was_built_before_decides() -> None:
    held = DoubtfulBuilds(lambda: True)
    held.sift([task(0, FailureCode.COMPILER_CRASH)])
    assert tasks(held.settle()) == [0]
    held = DoubtfulBuilds(lambda: False)
    held.sift([task(7, FailureCode.COMPILER_CRASH)])
    with pytest.raises(NothingCompilesError, match="all 1 that were tried have failed") as caught:
        held.settle()
    assert "compiler_crash: why 7" in str(caught.value)
    assert [lease.task for lease in held.leases] == [7], "to be given back"


def test_it_is_full_after_a_hundred_and_forgets_lost_leases() -> None:
    held = DoubtfulBuilds(lambda: False)
    held.sift([task(number, FailureCode.BUILD_TIMEOUT) for number in range(99)])
    assert not held.is_full
    held.sift([task(99, FailureCode.BUILD_TIMEOUT)])
    assert held.is_full
    held.forget(range(1, 100))
    assert [lease.task for lease in held.leases] == [0]
