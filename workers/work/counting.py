"""Count the work of a kernel's launch configs, in this process.

Decides how a kernel runs: its work-items run one after another if that changes no count, otherwise
one work-group at a time. ``child.py`` calls this module in a child process that can be killed.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.work import Work
from llmperf_common.records import Kernel, LaunchConfig
from workers.analysis.copy.rewriter import UnresolvedError
from workers.device.interface import AccessRange, DeviceFailure
from workers.source.clang.flow import Origin
from workers.work.counted_copy import CountedCopy, counted_copy
from workers.work.estimate import estimate
from workers.work.launch import VirtualLaunch
from workers.work.opencl_virtual import OpenclVirtualDevice, VirtualKernel
from workers.work.sampling.runs import KERNEL_NS, KernelBudget, UncountedError, UnitRuns
from workers.work.sampling.units import Grid, grid_of

_NUM_COMPARED = 2
_MOST_COMPARED = 2**20
"""Maximum executions of basic blocks in a work-group that runs twice for a comparison. With
barriers, so many executions take about 0.1 s."""
_DECIDED_BY_ATOMICS = (
    "what its work-items execute depends on results of atomic operations in global memory, and so "
    "on all other work-items of the launch"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLaunch:
    """What one launch executes, or why that is not known, and the bytes that it accesses.

    ``ranges``: one range for each pointer argument that is accessed, also the ``__local`` ones. It
    begins at or before the argument's start, and holds the accesses of the work-items that have
    run. ``is_covered``: the ranges say how far the launch reaches. The work-items are a sample with
    the first and the last unit of the launch. No code with accesses ran only in narrow parts of the
    launch, unless the last unit ran it. And no result of an atomic operation decides where they
    access memory.
    """

    outcome: Work | Failure
    ranges: tuple[AccessRange, ...] = ()
    is_covered: bool = False


def count_kernel(
    kernel: Kernel,
    configs: Sequence[LaunchConfig],
    device: OpenclVirtualDevice,
    *,
    without_barriers: bool = False,
    everything: bool = False,
    time_ns: float = KERNEL_NS,
) -> Generator[Work | Failure]:
    """Yield only the outcomes of ``count_launches``; arguments and errors are the same."""
    for one in count_launches(
        kernel,
        configs,
        device,
        without_barriers=without_barriers,
        everything=everything,
        time_ns=time_ns,
    ):
        yield one.outcome


def count_launches(
    kernel: Kernel,
    configs: Sequence[LaunchConfig],
    device: OpenclVirtualDevice,
    *,
    without_barriers: bool = False,
    everything: bool = False,
    only_ranges: bool = False,
    time_ns: float = KERNEL_NS,
) -> Generator[CountedLaunch]:
    """Yield the work and the access ranges of each config, in order and as soon as they are known.

    Work-items that meet at barriers also run one after another, if a few of the configs show that
    this changes no count, and if no work-item branches on what others wrote before a barrier. Such
    a run is dozens of times faster.

    Args:
        kernel: a kernel with a signature.
        configs: launch configs of the kernel.
        device: a CPU device.
        without_barriers: run work-items one after another without this check. Use it for a kernel
            in which not all work-items reach a barrier, because such a barrier would end the
            process.
        everything: run all work-items, whatever their number.
        only_ranges: run fewer work-items, which suffice for the access ranges.
        time_ns: limit on the estimated time of all configs together.

    Raises:
        DeviceFailure: The device's context was lost (sticky); its process can run nothing more.
    """
    try:
        running = _running(kernel, configs, device, time_ns, without_barriers=without_barriers)
    except UnresolvedError as error:
        yield from (CountedLaunch(outcome=_failure(str(error))) for _ in configs)
        return
    except DeviceFailure as error:
        if error.sticky:
            raise
        yield from (CountedLaunch(outcome=error.failure) for _ in configs)
        return
    try:
        for config in configs:
            yield running.count(config, everything=everything, only_ranges=only_ranges)
    finally:
        running.release()


class _Running:
    """A kernel whose copy is loaded, so that its launch configs can be counted.

    ``is_unsure``: the copy runs without the kernel's barriers, and no comparison has shown that its
    counts are the same with them. ``spare``: counts the configs that this one cannot count.
    """

    def __init__(
        self, loaded: VirtualKernel, copy: CountedCopy, time_ns: float, *, is_unsure: bool
    ) -> None:
        self.loaded, self.copy = loaded, copy
        self.is_unsure = is_unsure
        self.spare: _Running | None = None
        self._budget = KernelBudget(time_ns)
        self._origins = copy.influence

    def count(
        self, config: LaunchConfig, *, everything: bool, only_ranges: bool = False
    ) -> CountedLaunch:
        """Return the work of one config."""
        launch = None
        is_decided = bool(self._origins.branches & Origin.ATOMIC)
        try:
            launch = self.launch(config)
            if only_ranges or is_decided:
                sample = launch.small_sample()
            else:
                sample = launch.everything() if everything else launch.sample()
        except UncountedError as error:
            if self.spare is not None:
                return self.spare.count(config, everything=everything, only_ranges=only_ranges)
            return CountedLaunch(outcome=_failure(str(error)), ranges=self._ranges(launch))
        if is_decided:
            return CountedLaunch(outcome=_failure(_DECIDED_BY_ATOMICS), ranges=self._ranges(launch))
        work = estimate(self.copy, sample, without_barriers=self.is_unsure)
        is_appending = bool(self._origins.indices & Origin.ATOMIC)
        is_sampled_well = launch.has_run_all_code(sample)
        is_covered = is_sampled_well and not self.is_unsure and not is_appending
        return CountedLaunch(outcome=work, ranges=self._ranges(launch), is_covered=is_covered)

    def release(self) -> None:
        """Free what the device holds for this kernel."""
        self.loaded.release()
        if self.spare is not None:
            self.spare.release()

    def _ranges(self, launch: VirtualLaunch | None) -> tuple[AccessRange, ...]:
        """Return a launch's ranges; () if missing barriers may have changed its indices."""
        return () if launch is None or self.is_unsure else launch.access_ranges()

    def launch(self, config: LaunchConfig) -> VirtualLaunch:
        """Return a launch that has not run yet. Raises UncountedError."""
        grid = self.grid(config)
        if self.copy.is_grouped and grid.num_lanes > self.loaded.max_lanes:
            most = self.loaded.max_lanes
            raise UncountedError(
                f"a work-group has {grid.num_lanes} work-items, but the CPU device runs at most "
                f"{most} of this kernel"
            )
        self.loaded.prepare(config)
        return VirtualLaunch(UnitRuns(self.loaded, self.copy, config, grid, self._budget))

    def grid(self, config: LaunchConfig) -> Grid:
        """Return the grid of units of a config."""
        sizes = zip(config.global_size, config.local_size, strict=True)
        groups = tuple(total // side for total, side in sizes)
        lanes = math.prod(config.local_size)
        return grid_of(groups, lanes, by_groups=self.copy.by_groups)


def _running(
    kernel: Kernel,
    configs: Sequence[LaunchConfig],
    device: OpenclVirtualDevice,
    time_ns: float,
    *,
    without_barriers: bool,
) -> _Running:
    """Build the copy to run, with or without barriers. Raises UnresolvedError, DeviceFailure."""

    def made(*, without_barriers: bool, is_unsure: bool = False) -> _Running:
        copy = counted_copy(
            kernel.source, kernel.name, kernel.build_options, without_barriers=without_barriers
        )
        is_unsure = is_unsure or copy.lacks_barriers
        return _Running(device.load(kernel, copy), copy, time_ns, is_unsure=is_unsure)

    if without_barriers:
        return made(without_barriers=True, is_unsure=True)
    meeting = made(without_barriers=False)
    if not meeting.copy.is_grouped:
        return meeting
    single = made(without_barriers=True)
    answer = _compared(meeting, single, configs)
    if answer is _Answer.DIFFERENT:
        single.release()
        return meeting
    single.is_unsure = answer is not _Answer.SAME
    if meeting.copy.influence.branches & Origin.SHARED and answer is not _Answer.UNDEFINED:
        # A few groups do not show how often a work-item sees what others wrote.
        single.is_unsure = True
        meeting.spare = single
        return meeting
    meeting.release()
    return single


class _Answer(Enum):
    """What a comparison of runs with and without barriers shows.

    ``UNDEFINED``: some work-items skip a barrier that others reach. The effect of such a barrier is
    undefined (PoCL runs work-items that have returned, in some builds and not in others).
    """

    SAME = auto()
    DIFFERENT = auto()
    UNDEFINED = auto()
    UNKNOWN = auto()


def _compared(meeting: _Running, single: _Running, configs: Sequence[LaunchConfig]) -> _Answer:
    """Whether work-items run the same blocks, and reach as far, if they do not wait for each other.

    Compares the first, middle and last groups of some configs: the smallest ones of two local
    sizes, and the smallest one of the largest local size. ``UNKNOWN``: that would cost too much.
    """
    small = sorted(configs, key=lambda one: math.prod(one.global_size))
    chosen: dict[tuple[int, ...], LaunchConfig] = {}
    for config in small:
        if math.prod(config.local_size) <= meeting.loaded.max_lanes:
            chosen.setdefault(config.local_size, config)
    some = list(chosen.values())[:_NUM_COMPARED]
    some += sorted(chosen.values(), key=lambda one: math.prod(one.local_size))[-1:]
    answer = _Answer.UNKNOWN
    for config in {one.local_size: one for one in some}.values():
        found = _groups_compared(meeting, single, config)
        if found is not _Answer.SAME:
            return answer if found is _Answer.UNKNOWN else found
        answer = found
    return answer


def _groups_compared(meeting: _Running, single: _Running, config: LaunchConfig) -> _Answer:
    """Compare some groups of one config; ``UNKNOWN`` if not even one can be compared."""
    last = meeting.grid(config).num_units - 1
    answer = _Answer.UNKNOWN
    try:
        for number in dict.fromkeys((0, last, last // 2)):
            places = [meeting.grid(config).place(number)]
            alone = single.launch(config)
            apart = alone.rows(places)
            if int(apart.sum(dtype=np.uint64)) > _MOST_COMPARED:
                return answer
            met = meeting.launch(config)
            together = met.rows(places)
            if _skips_barriers(single.copy, apart, together):
                return _Answer.UNDEFINED
            if not np.array_equal(together, apart) or (
                met.access_ranges() != alone.access_ranges()
            ):
                return _Answer.DIFFERENT
            answer = _Answer.SAME
    except UncountedError:
        return answer
    return answer


def _skips_barriers(
    copy: CountedCopy, apart: npt.NDArray[np.uint32], together: npt.NDArray[np.uint32]
) -> bool:
    """Return whether some work-items of a group do not reach all its barriers.

    Args:
        copy: one of the two copies, which have the same blocks.
        apart: how often each work-item runs each block, if they run one after another.
        together: the same numbers, if the work-items wait for each other. ``apart`` alone does not
            suffice: a barrier in a loop whose number of iterations depends on other work-items can
            look skipped there.
    """
    barriers = np.array([block.tally.get("barriers", 0) for block in copy.blocks])
    alone, met = apart @ barriers, together @ barriers
    leaves_early = len(np.unique(alone[alone > 0])) == 1 and not alone.all()
    return leaves_early or len(np.unique(met)) > 1


def _failure(detail: str) -> Failure:
    return Failure(code=FailureCode.UNSUPPORTED, stage=Stage.PROBE, detail=detail)
