"""Run probes from the lightest to the heaviest, and stop where more of them would be useless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.analysis.points import Point
from workers.device.interface import ProbeRecord

CUT_OFF = ProbeRecord(access_ranges=(), turns=0, trace=0, exceeded=True, overflow=False)
"""Stands for a probe that is left out because a lighter one was already too heavy."""


def run_ascending(
    points: Sequence[Point],
    at_once: int,
    run: Callable[[Sequence[Point]], Sequence[ProbeRecord | None]],
    is_enough: Callable[[Sequence[ProbeRecord]], bool],
) -> list[ProbeRecord | None]:
    """Return the records of ``points``, in their order; ``CUT_OFF`` for those that did not run.

    Args:
        points: points in any order.
        at_once: number of points that run together.
        run: returns one record for each point, None if a point cannot be launched.
        is_enough: receives the records of the points that just ran; True ends the runs.
    """
    records: list[ProbeRecord | None] = [CUT_OFF] * len(points)
    order = sorted(range(len(points)), key=lambda index: (points[index].work, index))
    for start in range(0, len(order), at_once):
        chunk = order[start : start + at_once]
        done = run([points[index] for index in chunk])
        for index, record in zip(chunk, done, strict=True):
            records[index] = record
        if is_enough([one for one in done if one is not None]):
            break
    return records


@dataclass(slots=True)
class CutOffs:
    """Says when the probes of a design are enough, by loop iterations and not by time.

    So every machine gets the same result.

    Args:
        heaviest: loop iterations of a probe after which no heavier one runs.
        most: number of probes that may be cut off.
    """

    heaviest: int
    most: int
    num_run: int = 0
    num_cut_off: int = 0

    @property
    def too_many(self) -> bool:
        """Whether more probes than allowed were cut off."""
        return self.num_cut_off > self.most

    def is_enough(self, records: Sequence[ProbeRecord]) -> bool:
        """Whether a probe was too heavy, too many were cut off, or all of them up to now."""
        self.num_run += len(records)
        self.num_cut_off += sum(one.exceeded for one in records)
        is_hopeless = 0 < self.num_run == self.num_cut_off
        return is_hopeless or self.too_many or any(one.turns > self.heaviest for one in records)
