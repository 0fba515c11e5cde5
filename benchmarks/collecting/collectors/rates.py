"""Samples a second: of a whole part, and of the launches of one class.

A part's *wall* time goes from the start of its first process to the end of its last; its *work* time from the moment
when it could begin to its last row, so it lacks the seconds of imports and of opening the device, which are the same
however large the run. Ratios are given for both.

How time is shared out among launch configs, by the same rule for ours and for the plain loop: a row takes the time since
the row before it. The first row of a kernel also takes what comes between two kernels (building or loading it, spinning
up, a sentinel), and for ours the waiting for a compiler, its turn and the ledger, if there is any: that interval is
shared equally by all rows of the kernel. The first kernel's interval also holds what a process does once (ours starts its
children): all rows of the process share it. So nothing is left over: the shares add up to the work time. The rate of a class
is the number of its configs that are ok in both parts, over the sum of their shares; our median decides the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

SHORT_LAUNCH_NS = 100_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow:
    """One launch config of a part and when it was done, s of any clock."""

    kernel_id: str
    sample_id: str
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one process timed without a break, in order, from ``start_s``."""

    start_s: float
    rows: tuple[TimedRow, ...]

    @property
    def seconds(self) -> float:
        """From the start to the last row."""
        return self.rows[-1].end_s - self.start_s if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One row of ``results.csv``; ``wall_s`` None for a class of launches, which has shares of work time only."""

    part: str
    subset: str
    kernels: int
    configs: int
    ok: int
    wall_s: float | None
    work_s: float
    failures: str = ""
    deaths: int = 0
    is_cut: bool = False
    input_s: float = 0.0
    note: str = ""

    @property
    def ok_per_wall_s(self) -> float | None:
        """Ok samples a second, start-up included."""
        return self.ok / self.wall_s if self.wall_s else None

    @property
    def ok_per_work_s(self) -> float | None:
        """Ok samples a second without start-up."""
        return self.ok / self.work_s if self.work_s else None


def shares_s(stretches: Iterable[Stretch]) -> dict[str, float]:
    """Return the seconds that each launch config took, by ``sample_id``; they add up to the stretches.

    >>> row = lambda kernel, sample, end: TimedRow(kernel_id=kernel, sample_id=sample, end_s=end)
    >>> shares_s([Stretch(start_s=0.0, rows=(row("k", "a", 3.0), row("k", "b", 4.0), row("l", "c", 6.0)))])
    {'a': 1.0, 'b': 2.0, 'c': 3.0}
    """
    shares: dict[str, float] = {}
    for stretch in stretches:
        if not stretch.rows:
            continue
        before_s = stretch.rows[0].end_s
        once_s = (before_s - stretch.start_s) / len(stretch.rows)
        for _, group in groupby(stretch.rows, key=lambda row: row.kernel_id):
            rows = list(group)
            shared_s = once_s + (rows[0].end_s - before_s) / len(rows)
            before_s = rows[0].end_s
            for number, row in enumerate(rows):
                own_s = row.end_s - before_s if number else 0.0
                before_s = row.end_s
                shares[row.sample_id] = shared_s + own_s
    return shares


def class_rates(
    part: str,
    shares: dict[str, float],
    medians_ns: dict[str, float],
    kernels: dict[str, str],
    *,
    common: Sequence[str],
) -> list[Rate]:
    """Return the rates over ``common`` launch configs: all of them, the short and the others.

    Args:
        part: whose shares these are.
        shares: seconds by ``sample_id``.
        medians_ns: ours, by ``sample_id``: they tell the class.
        kernels: ``kernel_id`` by ``sample_id``.
        common: configs that are ok in all parts compared.
    """
    classes = {
        "common": list(common),
        "below_100_us": [one for one in common if medians_ns[one] < SHORT_LAUNCH_NS],
        "from_100_us": [one for one in common if medians_ns[one] >= SHORT_LAUNCH_NS],
    }
    return [
        Rate(
            part=part,
            subset=subset,
            kernels=len({kernels[one] for one in ids}),
            configs=len(ids),
            ok=len(ids),
            wall_s=None,
            work_s=sum(shares[one] for one in ids),
        )
        for subset, ids in classes.items()
    ]
