"""Count the work of launches in killable children: ``count_work`` for one kernel, ``count_all``.

Owns the limits of a count. A kernel that hangs, faults or takes too much memory ends only its own
child, and its configs get the reason instead of counts.
"""

from __future__ import annotations

import logging
import math
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from llmperf_common.awake_clock import POLL_S
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.work import Work
from llmperf_common.ledger.holder import this_process
from llmperf_common.records import Kernel, LaunchConfig
from workers.device.interface import AccessRange, DeviceRef
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.messages import Counted, CountJob, FromChild
from workers.sandbox.scratch import check_space, scratch_folder

COUNT_TIMEOUT_S = 20.0
"""Seconds for all configs of a kernel; the 68 configs of a median kernel take half a second."""
COUNT_CPU_S = 8.0
"""CPU seconds for one attempt at a kernel. On a busy machine this limit ends a kernel that
computes too long; ``COUNT_TIMEOUT_S`` ends a kernel that waits."""
_logger = logging.getLogger(__name__)
_MAX_ATTEMPTS = 2
_BARRIER = re.compile(r"\b(?:work_group_)?barrier\b")


@dataclass(slots=True, kw_only=True)
class CountedKernel:
    """One kernel, its launch configs, and the work of each or why it is unknown.

    Attributes:
        kernel: the kernel to count.
        configs: any launches of the kernel.
        only_ranges: whether only the access ranges are wanted.
        found: outcomes by index into ``configs``.
        ranges: access ranges by index into ``configs``.
        covered: the indices whose ranges say how far the launch reaches.
    """

    kernel: Kernel
    configs: Sequence[LaunchConfig]
    only_ranges: bool = False
    found: dict[int, Work | Failure] = field(default_factory=dict)
    ranges: dict[int, tuple[AccessRange, ...]] = field(default_factory=dict)
    covered: set[int] = field(default_factory=set)
    num_attempts: int = 0
    was_killed: bool = False
    without_barriers: bool = field(default=False)
    asked: tuple[int, ...] = ()
    """Indices of the configs that the child was asked to count, in the order of its outcomes."""

    @property
    def outcomes(self) -> tuple[Work | Failure, ...]:
        """The outcomes in the order of ``configs``."""
        return tuple(self.found[place] for place in range(len(self.configs)))

    def missing(self) -> tuple[int, ...]:
        """Return the indices of configs without outcome.

        Large configs come last, because they may crash the child.
        """
        sizes = [math.prod(one.global_size) for one in self.configs]
        places = (place for place in range(len(sizes)) if place not in self.found)
        return tuple(sorted(places, key=lambda place: sizes[place]))


def count_work(
    kernel: Kernel,
    configs: Sequence[LaunchConfig],
    ref: DeviceRef,
    *,
    timeout_s: float = COUNT_TIMEOUT_S,
    cpu_s: float = COUNT_CPU_S,
) -> tuple[Work | Failure, ...]:
    """Return the work of each launch config of one kernel, or why it is unknown.

    Seeds of the configs decide the contents of buffers, as they do when the launches are timed.

    Args:
        kernel: a kernel that can be launched.
        configs: any launches of the kernel.
        ref: a CPU OpenCL device.
        timeout_s: limit for all configs together, in seconds.
        cpu_s: limit of CPU time for all configs together, in seconds.

    Raises:
        StoreError: The scratch folder is full.
    """
    (found,) = count_all([(kernel, configs)], ref, num_children=1, timeout_s=timeout_s, cpu_s=cpu_s)
    return found.outcomes


def count_all(
    kernels: Iterable[tuple[Kernel, Sequence[LaunchConfig]]],
    ref: DeviceRef,
    *,
    num_children: int,
    timeout_s: float = COUNT_TIMEOUT_S,
    cpu_s: float = COUNT_CPU_S,
) -> Iterator[CountedKernel]:
    """Yield each kernel's counts once known, in any order; arguments are as in ``count_work``."""
    waiting = iter(kernels)
    with scratch_folder(this_process()) as scratch:
        starter = ChildStarter(scratch)
        pool: ChildPool[CountedKernel] = ChildPool(
            start_child=lambda name: starter.start("workers.work.child", name, ref),
            name="count",
            work=CountWork(timeout_s, cpu_s),
            num_children=num_children,
        )
        num_open = 0
        try:
            while True:
                while num_open < 2 * num_children and (one := next(waiting, None)) is not None:
                    pool.submit(CountedKernel(kernel=one[0], configs=one[1]))
                    num_open += 1
                if not num_open:
                    return
                pool.step(POLL_S)
                finished = pool.take_finished()
                num_open -= len(finished)
                if finished:
                    check_space(scratch)  # a full disk makes good kernels fail
                yield from finished
        finally:
            pool.close()


class CountWork:
    """The ``PoolWork`` of counting children: every config of an item gets its work or a reason."""

    def __init__(self, timeout_s: float, cpu_s: float) -> None:
        self._timeout_s, self._cpu_s = timeout_s, cpu_s

    @property
    def timeout_s(self) -> float:
        """Seconds after which a child is killed if its last outcome is missing."""
        return self._timeout_s

    def job(self, item: CountedKernel) -> CountJob:
        """Return the job for the missing configs, and count the attempt."""
        item.num_attempts += 1
        item.asked = item.missing()
        return CountJob(
            kernel=item.kernel,
            configs=tuple(item.configs[place] for place in item.asked),
            cpu_s=self._cpu_s,
            without_barriers=item.without_barriers,
            only_ranges=item.only_ranges,
        )

    def excuses_kill(self, item: CountedKernel) -> bool:
        """Excuse the first kill by not counting its attempt; False for a later kill."""
        is_first, item.was_killed = not item.was_killed, True
        item.num_attempts -= is_first
        return is_first

    def take(self, item: CountedKernel, answer: FromChild) -> bool:
        """Keep the outcomes; return whether all outcomes are there."""
        assert isinstance(answer, Counted), answer
        asked = item.asked[answer.first :]
        item.found.update(zip(asked, answer.outcomes, strict=False))
        item.ranges.update(zip(asked, answer.ranges, strict=False))
        covered = zip(asked, answer.covered, strict=False)
        item.covered.update(place for place, is_covered in covered if is_covered)
        return answer.is_last

    def timed_out(self, item: CountedKernel, after_s: float) -> None:
        """Record a hang for the configs without outcome."""
        _fill(item, FailureCode.HANG, f"the count was killed after {after_s:g} s")

    def died(self, item: CountedKernel, how: str, report: str, seconds: float) -> bool:
        """Return whether to try again; if not, record the reason for configs without outcome."""
        del seconds
        if report:
            error = (report.strip().splitlines() or ["unknown"])[-1]
            _logger.warning("the virtual launches of %s failed: %s", item.kernel.name, error)
            _fill(item, FailureCode.INTERNAL_ERROR, report)
            return False
        if signal.SIGXCPU.name in how:
            detail = f"the count was ended after {self._cpu_s:g} s of processor time"
            _fill(item, FailureCode.HANG, detail)
            return False
        if item.num_attempts < _MAX_ATTEMPTS:
            # On PoCL a barrier that not all work-items reach ends the process.
            item.without_barriers = has_barrier_call(item.kernel.source)
            return True
        _fill(item, FailureCode.DEVICE_FAULT, f"the count ended its process: {how}")
        return False

    def forget(self, item: CountedKernel) -> None:
        """Do nothing: an item leaves nothing behind."""


def has_barrier_call(source: str) -> bool:
    """Return whether a source text seems to call a barrier."""
    return _BARRIER.search(source) is not None


def _fill(item: CountedKernel, code: FailureCode, detail: str) -> None:
    """Record a failure for all configs without outcome."""
    failure = Failure(code=code, stage=Stage.PROBE, detail=detail)
    item.found.update((place, failure) for place in item.missing())
