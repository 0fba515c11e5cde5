"""Find the buffers that hold indices: values that decide how far a kernel reaches into others.

Owns the search. The values of one buffer, A, get larger limits. If the kernel then reaches
further into a buffer B, then B is a target of A. The reach depends on the limit in the same way as
on a size, so it is fitted in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmperf_common.analysis import VALUE_LIMIT, ContentsRule, IndexRole, IndexTarget
from llmperf_common.records import Access, Argument, ArgumentKind
from workers.analysis.content_modes import DEFAULT_MODE
from workers.analysis.fit import Explained, Observations, explain
from workers.analysis.points import Point
from workers.analysis.polynomials import Fit
from workers.analysis.probing import Probing
from workers.device.interface import ProbeRecord
from workers.plan.inputs import SCALAR_TYPES

_MOST_SOURCES = 8
_TRIED_LIMITS = (16, 90)
_TRIED_POINTS = 8
_FITTED_POINTS = 48
_LIMITS = (6, 120)
_FLOATS = frozenset({"half", "float", "double"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """The index buffers; ``by_target``: for each buffer, the buffers that hold indices into it."""

    by_target: Mapping[int, frozenset[int]]
    roles: tuple[IndexRole, ...]


def find_roles(
    probing: Probing,
    points: Sequence[Point],
    pointers: Sequence[Argument],
    steered: frozenset[int],
    neighbour_pairs: Sequence[int],
) -> Steering:
    """Find the integer buffers that hold indices into ``steered`` buffers, and their roles.

    Args:
        probing: runs the launches of the kernel.
        points: points that were probed.
        pointers: the kernel's pointer arguments.
        steered: positions of the buffers whose reach depends on contents.
        neighbour_pairs: positions of the buffers that are read at ``e`` and ``e + 1``.
    """
    by_target: dict[int, set[int]] = {}
    targets_of: dict[int, tuple[IndexTarget, ...]] = {}
    for source in _sources(pointers)[:_MOST_SOURCES]:
        reached = _reached(probing, points, pointers, source) & steered
        targets = _targets(probing, points, pointers, (source,), reached) if reached else ()
        for target in targets:
            by_target.setdefault(target.position, set()).add(source.position)
        if targets:
            targets_of[source.position] = targets
    together = _reached_together(probing, points, pointers, by_target)
    roles = []
    for position, targets in targets_of.items():
        rule = ContentsRule.PREFIX if position in neighbour_pairs else ContentsRule.BOUNDED
        joint = tuple(together.get(one.position, one) for one in targets)
        roles.append(IndexRole(position=position, rule=rule, targets=joint))
    return Steering(
        by_target={position: frozenset(found) for position, found in by_target.items()},
        roles=tuple(roles),
    )


def _reached_together(
    probing: Probing,
    points: Sequence[Point],
    pointers: Sequence[Argument],
    by_target: Mapping[int, set[int]],
) -> dict[int, IndexTarget]:
    """Return the targets with several sources, and their reach if all sources have the same limit.

    In ``a[b[i] + c[i]]`` the reach through ``b`` depends on the values of ``c``; plans give the
    values of ``b`` and ``c`` the same limit.
    """
    found: dict[int, IndexTarget] = {}
    for position, sources in by_target.items():
        if len(sources) > 1:
            moved = tuple(one for one in pointers if one.position in sources)
            targets = _targets(probing, points, pointers, moved, frozenset({position}))
            found |= {one.position: one for one in targets}
    return found


def _sources(pointers: Sequence[Argument]) -> list[Argument]:
    return [
        one
        for one in pointers
        if one.kind is not ArgumentKind.LOCAL_BUFFER
        and one.access is not Access.WRITE
        and _has_integers(one)
    ]


def _has_integers(argument: Argument) -> bool:
    kinds = {leaf.scalar_type for leaf in argument.leaves} or {argument.scalar_type}
    return any(kind in SCALAR_TYPES and kind not in _FLOATS for kind in kinds)


def _reached(
    probing: Probing, points: Sequence[Point], pointers: Sequence[Argument], source: Argument
) -> frozenset[int]:
    """Return the buffers whose reach changes when the source's values grow."""
    chosen = points[:: max(1, len(points) // _TRIED_POINTS)]
    runs = [
        probing.run(chosen, DEFAULT_MODE, [{source.position: limit}] * len(chosen))
        for limit in _TRIED_LIMITS
    ]
    return frozenset(
        argument.position
        for index, argument in enumerate(pointers)
        for first, other in zip(*runs, strict=True)
        if first is not None
        and other is not None
        and first.access_ranges[index].end_bytes != other.access_ranges[index].end_bytes
    )


def _targets(
    probing: Probing,
    points: Sequence[Point],
    pointers: Sequence[Argument],
    sources: Sequence[Argument],
    reached: frozenset[int],
) -> tuple[IndexTarget, ...]:
    """Return the reach into each ``reached`` buffer as a form of the limit of all ``sources``."""
    draws = random.Random(sources[0].position)  # noqa: S311  (no secret)
    chosen = [points[draws.randrange(len(points))] for _ in range(_FITTED_POINTS)]
    limits = [draws.randint(*_LIMITS) for _ in chosen]
    moved = [dict.fromkeys((one.position for one in sources), limit) for limit in limits]
    records = probing.run(chosen, DEFAULT_MODE, moved)
    found = []
    for index, argument in enumerate(pointers):
        if argument.position not in reached:
            continue
        target = _target(probing, chosen, limits, records, index, argument)
        if target is not None:
            found.append(target)
    return tuple(found)


def _target(
    probing: Probing,
    points: Sequence[Point],
    limits: Sequence[int],
    records: Sequence[ProbeRecord | None],
    index: int,
    argument: Argument,
) -> IndexTarget | None:
    size = max(1, argument.element_bytes)
    kept = [
        (point, limit, record)
        for point, limit, record in zip(points, limits, records, strict=True)
        if record is not None and not record.exceeded and record.access_ranges[index].end_bytes > 0
    ]
    if not kept:
        return None
    plain = probing.rows([point for point, _, _ in kept])
    column = np.array([[limit] for _, limit, _ in kept], dtype=np.int64)
    names = (*probing.names, VALUE_LIMIT)
    seen = Observations(
        names=names,
        rows=np.hstack([plain, column]),
        extents=np.array(
            [-(-record.access_ranges[index].end_bytes // size) for _, _, record in kept],
            dtype=np.int64,
        ),
        tiers=np.array(["drawn"] * len(kept)),
        held_out=np.zeros(len(kept), dtype=bool),
        identities=probing.identities,
    )
    explained = explain(seen, choices=probing.choices())
    form = _form_of_limit(explained, len(names) - 1)
    return None if form is None else IndexTarget(position=argument.position, form=form.named(names))


def _form_of_limit(explained: Explained | None, limit: int) -> Fit | None:
    """Return the form that contains the limit of the values; None if no form depends on it."""
    if explained is None:
        return None
    for one in (explained.form, explained.cap):
        if one is not None and limit in one.variables:
            return one
    return None
