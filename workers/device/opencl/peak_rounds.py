"""Measure the best rate of each of several loads, in rounds in which every load has a short turn.

Owns the rounds and their spread. ``peaks.py`` has the loads.

The best of five launches in a row was not enough on a CPU device. They took 2 ms, less than a time
slice of the scheduler. If another process used one of two processors for that long, half the peak
was recorded (117 instead of 231 GFLOP/s in 3 of 8 starts on 2 cores). Eight rounds are enough if
one other process is busy. With two busy processes, one start in a CI run still gave 158 GFLOP/s.
So rounds go on until two of them agree. Their time is limited, because a start must not take too
long: beside busy processes, 32 rounds took 10.9 s on a CPU whose caches of 300 MiB need arrays of
1.5 GiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

NUM_ROUNDS = 8
MOST_ROUNDS = 32
MOST_S = 5.0
"""Seconds after which no round beyond ``NUM_ROUNDS`` begins."""
AGREEMENT = 0.05
"""Largest relative difference between two rounds that agree: a peak must be right within 5 %."""
TURN_S = 0.03
"""Seconds per load and round: several time slices, and hundreds of launches of a short load."""


class Load(Protocol):
    """Work that is launched repeatedly."""

    def launch_rate(self) -> float:
        """Launch once and return the rate, in the unit of the peak."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The best rate of all rounds; ``spread``, 0 to 1: (best - median of rounds) / best."""

    best: float
    spread: float


def peaks_of(
    loads: Sequence[Load],
    *,
    num_rounds: int = NUM_ROUNDS,
    most_rounds: int = MOST_ROUNDS,
    most_s: float = MOST_S,
    turn_s: float = TURN_S,
    clock_s: Callable[[], float] = time.perf_counter,
) -> list[Peak]:
    """Return the peak of each load.

    Rounds go on beyond ``num_rounds`` while, for some load, no second round comes close to the best
    rate. Then all other rounds were disturbed, so the best one may have been disturbed, too.

    Args:
        loads: the loads to measure, warmed up.
        num_rounds: minimum number of turns of each load; between two turns of a load, every other
            load has a turn.
        most_rounds: maximum number of turns of each load.
        most_s: seconds after which no round beyond ``num_rounds`` begins.
        turn_s: seconds that a turn takes; each turn has at least one launch.
        clock_s: monotonic seconds.
    """
    rounds: list[list[float]] = []
    end_s = clock_s() + most_s
    while len(rounds) < num_rounds or (
        len(rounds) < most_rounds and clock_s() < end_s and not _all_are_confirmed(rounds)
    ):
        rounds.append([_best_of_turn(load, turn_s, clock_s) for load in loads])
    return [_peak(rates) for rates in zip(*rounds, strict=True)]


def _all_are_confirmed(rounds: Sequence[Sequence[float]]) -> bool:
    """Return whether a second round came close to the best rate, for each load."""
    highest_two = (sorted(rates)[-2:] for rates in zip(*rounds, strict=True))
    return all(second > (1 - AGREEMENT) * best for second, best in highest_two)


def _best_of_turn(load: Load, turn_s: float, clock_s: Callable[[], float]) -> float:
    end_s = clock_s() + turn_s
    best = load.launch_rate()
    while clock_s() < end_s:
        best = max(best, load.launch_rate())
    return best


def _peak(rates: Sequence[float]) -> Peak:
    best = max(rates)
    return Peak(best=best, spread=1 - median(rates) / best)
