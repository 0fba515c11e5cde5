"""Searching many schedules, on several processes, and making what is found small.

Owns the loop over seeds, the sums, and the shrinking of a failing schedule to the decisions it needs.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from tests.simulation.decisions import Decision
from tests.simulation.planted import PLANTED
from tests.simulation.schedule import Outcome, run_schedule

_CHUNK = 250


@dataclass(slots=True, kw_only=True)
class SearchReport:
    """What a search has seen so far; ``failure`` is the first violation, if any."""

    num_schedules: int = 0
    num_points: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    failure: Outcome | None = None

    def add(self, other: SearchReport) -> None:
        """Add another part of the search."""
        self.num_schedules += other.num_schedules
        self.num_points += other.num_points
        self.coverage += other.coverage
        self.failure = self.failure or other.failure


def search_range(first: int, last: int, *, planted: str) -> SearchReport:
    """Run the schedules of the seeds ``first`` to ``last`` - 1, up to the first violation."""
    report = SearchReport()
    for seed in range(first, last):
        outcome = run_schedule(seed, planted=PLANTED[planted])
        report.num_schedules += 1
        report.num_points += outcome.num_points
        report.coverage += outcome.coverage
        if outcome.violation is not None:
            report.failure = outcome
            break
    return report


def search(
    *,
    first: int,
    schedules: int,
    processes: int,
    planted: str,
    progress: Callable[[SearchReport, float], None],
) -> SearchReport:
    """Run ``schedules`` schedules on ``processes`` processes; stops at the first violation."""
    started_s = time.monotonic()
    total = SearchReport()
    for part in _parts(first, schedules, processes, planted):
        total.add(part)
        progress(total, time.monotonic() - started_s)
        if total.failure is not None:
            break
    return total


def _parts(first: int, schedules: int, processes: int, planted: str) -> Iterator[SearchReport]:
    end = first + schedules
    ranges = [(at, min(at + _CHUNK, end), planted) for at in range(first, end, _CHUNK)]
    if processes == 1:
        yield from map(_search_one, ranges)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            yield from pool.map(_search_one, ranges)
        finally:
            pool.shutdown(cancel_futures=True)


def _search_one(arguments: tuple[int, int, str]) -> SearchReport:
    first, last, planted = arguments
    return search_range(first, last, planted=planted)


def shrink(failure: Outcome, *, planted: str) -> Outcome:
    """Return the failing schedule with as few decisions as still give the same kind of violation.

    None of those left can be dropped, nor any two together: one alone often only moves what comes after it.
    """
    assert failure.violation is not None
    kind = failure.violation.kind

    def still_fails(taken: dict[int, Decision]) -> bool:
        violation = run_schedule(failure.seed, planted=PLANTED[planted], taken=taken).violation
        return violation is not None and violation.kind == kind

    taken = dict(failure.taken)
    while True:
        taken = _without_chunks(taken, still_fails)
        pairs = itertools.combinations(sorted(taken), 2)
        fewer = next(filter(still_fails, (_but(taken, pair) for pair in pairs)), None)
        if fewer is None:
            break
        taken = fewer
    return run_schedule(failure.seed, planted=PLANTED[planted], taken=taken, with_trace=True)


def _without_chunks(
    taken: dict[int, Decision], still_fails: Callable[[dict[int, Decision]], bool]
) -> dict[int, Decision]:
    """Drop half of the decisions, a quarter and so on, as long as the rest still fails."""
    step = max(1, len(taken) // 2)
    while step:
        positions = sorted(taken)
        chunks = (positions[start : start + step] for start in range(0, len(positions), step))
        fewer = next(filter(still_fails, (_but(taken, chunk) for chunk in chunks)), None)
        if fewer is None:
            step //= 2
        else:
            taken = fewer
    return taken


def _but(taken: dict[int, Decision], dropped: Collection[int]) -> dict[int, Decision]:
    return {position: one for position, one in taken.items() if position not in dropped}


def describe(failure: Outcome) -> str:
    """Return a schedule as text: its decisions and every operation."""
    lines = [
        f"seed {failure.seed}: {failure.violation}",
        f"decisions: { {at: (d.kind.value, d.number) for at, d in sorted(failure.taken.items())} }",
    ]
    lines += [f"{at_s:9.3f} p{process} {text}" for at_s, process, text in failure.trace]
    return "\n".join(lines)
