"""The order of a task's configs: as planned, but a config waits until it is sure to be short.

Owns the estimate of how long a config may take, made from the configs that have run, and decides
which configs are not launched at all. The order matters because a launch can be stopped only by
killing its process: a kernel of cubic cost would hold the device for minutes at the largest size,
and a task has about 70 configs. Pure; see docs/decisions/0018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from llmperf_common.failures import CensorReason, Failure, FailureCode, Stage
from llmperf_common.records import LaunchConfig

HUNG_NS = 1e18
"""Nanoseconds (30 years) that stand for a launch that did not end: JSON has no infinity."""

MAX_GROWTH = 3
"""Exponent. A launch time is assumed to grow at most with this power of the ratio of the sizes, as
with three nested loops."""
FEW_TOO_LONG = 3
FAR_TOO_LONG = 4.0
"""A config is given up after one smaller config took ``FAR_TOO_LONG`` times
``timing.max_launch_ms``, or after ``FEW_TOO_LONG`` smaller ones took longer than
``timing.max_launch_ms``."""

OUT_OF_BUDGET = "not reached within limits.task_budget_s"

_LEAST_NS = 1000.0
"""Shortest time of a launch, in ns, that estimates assume. Without it, a clock that reports 0 would
make every size look safe."""
_MOST_RATIO = 1e30
"""Largest ratio of two sizes: a scalar may be any double, and powers of ratios must stay finite."""


class RunOrder:
    """Iterates over a task's open configs, in the order in which they should run.

    Args:
        configs: all configs of the task, in the plan's order.
        launch_ns: duration of one launch of each config, ns. ``HUNG_NS`` if it did not end, None
            if it is unknown.
        open_indices: indices of the configs without an outcome.
        max_launch_ns: longest duration that a launch should have, ns.
    """

    def __init__(
        self,
        configs: Sequence[LaunchConfig],
        launch_ns: Sequence[float | None],
        open_indices: Sequence[int],
        *,
        max_launch_ns: float,
    ) -> None:
        self._sizes = [_sizes(config) for config in configs]
        self._limit_ns = max_launch_ns
        self._open: dict[int, None] = dict.fromkeys(open_indices)
        self._bounds_ns = dict.fromkeys(open_indices, math.inf)
        self._is_calm = False
        self._too_long: list[tuple[int, float]] = []
        self._has_news = False
        for index, known_ns in enumerate(launch_ns):
            if known_ns is not None:
                self._learn(index, known_ns)

    def __iter__(self) -> Iterator[int]:
        """Yield configs to run until none is open; call ``note`` after each one."""
        while self._open:
            index = self._next()
            del self._open[index]
            yield index

    def note(self, index: int, launch_ns: float | None) -> None:
        """Learn from a config that has run; ``launch_ns`` is None if the config has no time."""
        if launch_ns is not None:
            self._learn(index, launch_ns)

    def take_hopeless(self) -> list[tuple[int, Failure]]:
        """Remove and return the open configs not to be launched, judged by configs no larger.

        Each index comes with the failure that becomes the config's outcome.
        """
        if not self._has_news:
            return []
        self._has_news = False
        found = [(index, why) for index in self._open if (why := self._why_hopeless(index))]
        for index, _ in found:
            del self._open[index]
        return found

    def take_rest(self) -> list[int]:
        """Remove and return the indices of all open configs."""
        rest = list(self._open)
        self._open.clear()
        return rest

    def _next(self) -> int:
        if not self._is_calm:
            safe = [i for i in self._open if self._bounds_ns[i] <= self._limit_ns]
            if not safe:
                return min(self._open, key=self._cost)
            self._is_calm = len(safe) == len(self._open)
            return safe[0]
        return next(iter(self._open))

    def _cost(self, index: int) -> tuple[float, float]:
        return self._bounds_ns[index], math.fsum(map(math.log, self._sizes[index]))

    def _learn(self, index: int, launch_ns: float) -> None:
        launch_ns = max(launch_ns, _LEAST_NS)
        if launch_ns > self._limit_ns:
            self._too_long.append((index, launch_ns))
            self._has_news = True
        if self._is_calm:
            return
        sizes = self._sizes[index]
        for other in self._open:
            growth = _growth(sizes, self._sizes[other])
            self._bounds_ns[other] = min(self._bounds_ns[other], launch_ns * growth)

    def _why_hopeless(self, index: int) -> Failure | None:
        sizes = self._sizes[index]
        no_larger = [
            (took_ns, self._sizes[other] != sizes)
            for other, took_ns in self._too_long
            if all(a <= b for a, b in zip(self._sizes[other], sizes, strict=True))
        ]
        # A slow config does not rule out its siblings (configs of equal sizes), because siblings
        # serve to compare local sizes.
        shorter = [took_ns for took_ns, is_smaller in no_larger if is_smaller]
        longest_ns = max(shorter, default=0.0)
        if any(took_ns >= HUNG_NS for took_ns, _ in no_larger):
            code, why = FailureCode.QUARANTINED, "a launch config no larger in any dimension hung"
            censored = CensorReason.LARGER_THAN_HUNG
        elif longest_ns >= FAR_TOO_LONG * self._limit_ns or len(shorter) >= FEW_TOO_LONG:
            code, censored = FailureCode.OVER_TIME_BUDGET, CensorReason.LARGER_THAN_TOO_LONG
            why = (
                f"{len(shorter)} smaller configs, no larger in any dimension, took up to "
                f"{longest_ns / 1e6:.3f} ms; timing.max_launch_ms is {self._limit_ns / 1e6:g}"
            )
        else:
            return None
        detail = f"not launched: {why}"
        return Failure(code=code, stage=Stage.LAUNCH, detail=detail, censored=censored)


def _sizes(config: LaunchConfig) -> tuple[float, ...]:
    """Return the sizes that decide the work: global sizes, then elements or values of arguments."""
    arguments = (one.elements if one.value is None else one.value for one in config.args)
    return (*map(float, config.global_size), *(max(1.0, float(one or 0)) for one in arguments))


def _growth(small: Sequence[float], large: Sequence[float]) -> float:
    ratios = [min(b / a, _MOST_RATIO) for a, b in zip(small, large, strict=True) if b > a]
    return min(math.prod(ratios), max(ratios) ** MAX_GROWTH) if ratios else 1.0
