"""The probes from which conclusions are drawn, and selections of these probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmperf_common.records import Access, Argument, ArgumentKind
from workers.analysis.points import Point
from workers.device.interface import ProbeRecord

FEWEST_POINTS = 12
_IDLE_SHARE = 0.25
_LIGHT_TURNS = 2**16
"""Maximum loop iterations of a probe that is repeated with other contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Probes without cut-off loops and array overflows; the shares of these refer to all probes."""

    points: tuple[Point, ...]
    records: tuple[ProbeRecord, ...]
    cut_off_share: float
    overflow_share: float


def lighter(seen: Seen) -> Seen:
    """Return the probes with few loop iterations; other contents may make loops much longer."""
    by_turns = sorted(range(len(seen.points)), key=lambda index: (seen.records[index].turns, index))
    light = [index for index in by_turns if seen.records[index].turns <= _LIGHT_TURNS]
    kept = sorted(light if len(light) >= FEWEST_POINTS else by_turns[:FEWEST_POINTS])
    return Seen(
        points=tuple(seen.points[index] for index in kept),
        records=tuple(seen.records[index] for index in kept),
        cut_off_share=seen.cut_off_share,
        overflow_share=seen.overflow_share,
    )


def together(one: Seen, other: Seen) -> Seen:
    """Return the probes of both; the shares are those of ``one``."""
    return replace(one, points=(*one.points, *other.points), records=(*one.records, *other.records))


def every_nth(seen: Seen, most: int) -> Seen:
    """Return about ``most`` of the probes, evenly spread."""
    step = max(1, len(seen.points) // most)
    return Seen(
        points=seen.points[::step],
        records=seen.records[::step],
        cut_off_share=seen.cut_off_share,
        overflow_share=seen.overflow_share,
    )


def furthest(records: Sequence[ProbeRecord]) -> ProbeRecord:
    """Return the first record, but with the furthest reach of all records for each buffer."""
    access_ranges = tuple(
        max(column, key=lambda one: one.end_bytes)
        for column in zip(*(one.access_ranges for one in records), strict=True)
    )
    first = records[0]
    return ProbeRecord(
        access_ranges=access_ranges,
        turns=first.turns,
        trace=first.trace,
        exceeded=first.exceeded,
        overflow=first.overflow,
    )


def looks_idle(seen: Seen, pointers: Sequence[Argument]) -> bool:
    """Whether at least half of the planned probes write fewer elements than they have work-items.

    True for kernels in which most work-items return at once, but also for reductions, and for a
    kernel without planned probes.

    Args:
        seen: the probes; their access ranges have the order of ``pointers``.
        pointers: the kernel's pointer arguments.
    """
    written = [
        index
        for index, one in enumerate(pointers)
        if one.kind is ArgumentKind.GLOBAL_BUFFER
        and one.access in (Access.WRITE, Access.READ_WRITE)
    ]
    planned = [
        (math.prod(point.global_size), record)
        for point, record in zip(seen.points, seen.records, strict=True)
        if point.tier == "planned"
    ]

    def reached(record: ProbeRecord, index: int) -> float:
        accessed = record.access_ranges[index]
        return (accessed.end_bytes - accessed.start_bytes) / max(1, pointers[index].element_bytes)

    num_busy = sum(
        any(reached(record, index) >= _IDLE_SHARE * items for index in written)
        for items, record in planned
    )
    return 2 * num_busy <= len(planned)
