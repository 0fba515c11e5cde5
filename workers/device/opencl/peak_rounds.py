"""The best rate of several loads, measured in rounds: every load has a short turn in each of them.

Owns the rounds and their spread. What a load launches is ``opencl_peaks``'s.

Best of five launches in a row was not enough on a CPU device: 2 ms in all, less than a time slice
of the scheduler. While another process has one of two processors for that long, half the peak was
recorded (3 of 8 starts on 2 cores gave 117 instead of 231 GFLOP/s). Eight rounds are enough for one
busy process; beside two of them one start in a CI run still gave 158, so rounds go on until two of
them agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

NUM_ROUNDS = 8
MOST_ROUNDS = 32
AGREEMENT = 0.05
"""Two rounds agree if their rates differ by less than this share: a peak needs to be right within some per cent."""
TURN_S = 0.03
"""Seconds that a load has in each round: several time slices, and hundreds of launches of a short load."""


class Load(Protocol):
    """Work that is launched again and again."""

    def launch_rate(self) -> float:
        """Launch once and return the rate of this launch, in the unit of the peak."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The best rate of all rounds; ``spread`` = (best - median of the rounds' bests) / best, 0 to 1."""

    best: float
    spread: float


def peaks_of(
    loads: Sequence[Load],
    *,
    num_rounds: int = NUM_ROUNDS,
    most_rounds: int = MOST_ROUNDS,
    turn_s: float = TURN_S,
    clock_s: Callable[[], float] = time.perf_counter,
) -> list[Peak]:
    """Return the peak of each load.

    Rounds go on beyond ``num_rounds`` while some load's best rate was reached in a single round: the
    others were disturbed, so that one may have been, too.

    Args:
        loads: what to measure, warmed up.
        num_rounds: how often each load has its turn at least; the turns of one load lie as far apart as the others take.
        most_rounds: how often each load has its turn at most.
        turn_s: seconds of a turn, at least one launch.
        clock_s: monotonic seconds.
    """
    rounds: list[list[float]] = []
    while len(rounds) < num_rounds or (
        len(rounds) < most_rounds and not _all_are_confirmed(rounds)
    ):
        rounds.append([_best_of_turn(load, turn_s, clock_s) for load in loads])
    return [_peak(rates) for rates in zip(*rounds, strict=True)]


def _all_are_confirmed(rounds: Sequence[Sequence[float]]) -> bool:
    """Return whether a second round came close to the best rate of each load."""
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
