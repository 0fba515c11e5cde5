"""Trace launches in killable children: ``trace_all``.

Owns the limits of a trace. A kernel that hangs, faults or takes too much memory ends only its own
child, and the reason is returned for its launch.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from llmperf_common.awake_clock import POLL_S
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.accesses import AccessTrace
from llmperf_common.ledger.holder import this_process
from llmperf_common.records import Kernel, LaunchConfig
from workers.device.interface import DeviceRef
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.messages import FromChild, Traced, TraceJob
from workers.sandbox.scratch import check_space, scratch_folder
from workers.work.children import COUNT_CPU_S, COUNT_TIMEOUT_S, has_barrier_call

_MAX_ATTEMPTS = 2


@dataclass(slots=True, kw_only=True)
class _TracedLaunch:
    """One launch. ``outcome``: what it accesses or why that is not known; None at first."""

    kernel: Kernel
    config: LaunchConfig
    outcome: AccessTrace | Failure | None = None
    num_attempts: int = 0
    was_killed: bool = False
    without_barriers: bool = False


def trace_all(
    launches: Sequence[tuple[Kernel, LaunchConfig]],
    ref: DeviceRef,
    *,
    num_children: int = 1,
    timeout_s: float = COUNT_TIMEOUT_S,
    cpu_s: float = COUNT_CPU_S,
) -> list[AccessTrace | Failure]:
    """Return what each launch accesses, or why that is not known, in the order of ``launches``.

    Args:
        launches: kernels that can be launched, each with one of its launch configs.
        ref: a CPU OpenCL device.
        num_children: maximum number of children at once.
        timeout_s: limit for one launch, in seconds.
        cpu_s: limit of processor time for one attempt at a launch, in seconds.

    Raises:
        StoreError: The scratch folder is full.
        ChildStartError: The device cannot be opened.
    """
    items = [_TracedLaunch(kernel=kernel, config=config) for kernel, config in launches]
    with scratch_folder(this_process()) as scratch:
        starter = ChildStarter(scratch)
        pool: ChildPool[_TracedLaunch] = ChildPool(
            start_child=lambda name: starter.start("workers.work.trace_child", name, ref),
            name="trace",
            work=_TraceWork(timeout_s, cpu_s),
            num_children=num_children,
        )
        try:
            for one in items:
                pool.submit(one)
            while not pool.is_idle:
                pool.step(POLL_S)
                check_space(scratch)
        finally:
            pool.close()
    found = [one.outcome for one in items]
    return [one for one in found if one is not None]


class _TraceWork:
    """The ``PoolWork`` of tracing children."""

    def __init__(self, timeout_s: float, cpu_s: float) -> None:
        self._timeout_s, self._cpu_s = timeout_s, cpu_s

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trace without an answer is killed."""
        return self._timeout_s

    def job(self, item: _TracedLaunch) -> TraceJob:
        """Return the job, and count the attempt."""
        item.num_attempts += 1
        return TraceJob(
            kernel=item.kernel,
            config=item.config,
            cpu_s=self._cpu_s,
            without_barriers=item.without_barriers,
        )

    def excuses_kill(self, item: _TracedLaunch) -> bool:
        """Excuse the first kill by not counting its attempt; False for a later kill."""
        is_first, item.was_killed = not item.was_killed, True
        item.num_attempts -= is_first
        return is_first

    def take(self, item: _TracedLaunch, answer: FromChild) -> bool:
        """Keep the answer."""
        assert isinstance(answer, Traced), answer
        item.outcome = answer.outcome
        return True

    def timed_out(self, item: _TracedLaunch, after_s: float) -> None:
        """Record that the child was killed because it hung."""
        item.outcome = _reason(FailureCode.HANG, f"the trace was killed after {after_s:g} s")

    def died(self, item: _TracedLaunch, how: str, report: str, seconds: float) -> bool:
        """Allow one more attempt, without barriers if there are any, or record the child's end."""
        del seconds
        if report:
            item.outcome = _reason(FailureCode.INTERNAL_ERROR, report)
            return False
        if signal.SIGXCPU.name in how:
            detail = f"the trace was ended after {self._cpu_s:g} s of processor time"
            item.outcome = _reason(FailureCode.HANG, detail)
            return False
        if item.num_attempts < _MAX_ATTEMPTS:
            # On PoCL a barrier that not all work-items reach ends the process.
            item.without_barriers = has_barrier_call(item.kernel.source)
            return True
        item.outcome = _reason(FailureCode.DEVICE_FAULT, f"the trace ended its process: {how}")
        return False

    def forget(self, item: _TracedLaunch) -> None:
        """Do nothing: a trace leaves nothing behind."""


def _reason(code: FailureCode, detail: str) -> Failure:
    return Failure(code=code, stage=Stage.PROBE, detail=detail)
