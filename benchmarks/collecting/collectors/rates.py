"""Samples per second of a whole part, and of the launches of one class.

A part is one of the compared ways to collect. Its *wall* time is the time from the start of its
first process to the end of its last process. Its *work* time is the time from the moment at which
it could begin to time kernels to its last row. Work time excludes imports and the opening of the
device, which take the same time in a run of any size. Ratios are given for both times.

The work time is divided among launch configs by the same rule for LLMPerf and for the plain loop. A
row takes the time since the row before it. The time before the first row of a kernel also contains
the work between two kernels (building or loading the kernel, spin-up, a sentinel). In LLMPerf it
also contains any wait for a compiler, for the device and for the ledger. All rows of the kernel
share this interval equally. The interval of the first kernel also contains the work that a process
does once (LLMPerf starts its children), and all rows of the process share that interval. Therefore
the shares add up to the work time. The rate of a class is the number of its configs that are ok in
both parts, divided by the sum of their shares. LLMPerf's median decides the class of a config.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

SHORT_LAUNCH_NS = 100_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow:
    """One launch config of a part; ``end_s`` is the time at which it was done, on any clock."""

    kernel_id: str
    sample_id: str
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The launch configs that one process timed without a break, in order, from ``start_s``."""

    start_s: float
    rows: tuple[TimedRow, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last row."""
        return self.rows[-1].end_s - self.start_s if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One row of ``results.csv``; a class of launches has work time only, so ``wall_s`` is None."""

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
        """Ok samples per second, including start-up."""
        return self.ok / self.wall_s if self.wall_s else None

    @property
    def ok_per_work_s(self) -> float | None:
        """Ok samples per second, without start-up."""
        return self.ok / self.work_s if self.work_s else None


def shares_s(stretches: Iterable[Stretch]) -> dict[str, float]:
    """Return the seconds of each launch config by ``sample_id``; they add up to the stretches.

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
    """Return the rates over all ``common`` launch configs, the short ones and the long ones.

    Args:
        part: the part that the shares belong to.
        shares: seconds by ``sample_id``.
        medians_ns: LLMPerf's medians by ``sample_id``; they decide the class.
        kernels: ``kernel_id`` by ``sample_id``.
        common: configs that are ok in all compared parts.
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
