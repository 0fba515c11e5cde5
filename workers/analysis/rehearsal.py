"""Rehearse planned launches, and check that they stay within the buffers that plans give them.

The role of a buffer of indices (``steering.py``) is fitted with small limits of its values, but
plans use limits of millions. Owns the final decision on such roles. If a planned launch exceeds a
planned target buffer of a role, the role is removed, and plans fill the index buffer with small
values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmperf_common.analysis import Analysis
from llmperf_common.records import Argument, ArgumentKind
from workers.analysis.content_modes import DEFAULT_MODE
from workers.analysis.points import Point
from workers.analysis.probing import Probing
from workers.plan.strategies.buffers import AnalysedBuffers

_MAX_LAUNCH_BYTES = 2**30


def rehearsed(analysis: Analysis, probing: Probing, pointers: Sequence[Argument]) -> Analysis:
    """Return the analysis without the index roles that cause accesses beyond the end of a buffer.

    Runs planned launches of the instrumented copy. If an access passes the end of a planned buffer,
    the roles that target this buffer are removed. This repeats until no role is removed.

    Args:
        analysis: the analysis whose index roles are tried.
        probing: runs the launches of the kernel.
        pointers: the kernel's pointer arguments.
    """
    while analysis.index_roles:
        left = _left_behind(analysis, probing, pointers)
        kept = tuple(
            role
            for role in analysis.index_roles
            if not any(target.position in left for target in role.targets)
        )
        if len(kept) == len(analysis.index_roles):
            break
        analysis = replace(analysis, index_roles=kept)
    return analysis


def _left_behind(
    analysis: Analysis, probing: Probing, pointers: Sequence[Argument]
) -> frozenset[int]:
    """Return the buffers that the launches access beyond the planned end."""
    planned = AnalysedBuffers(
        signature=probing.signature, analysis=analysis, max_launch_bytes=_MAX_LAUNCH_BYTES
    )
    points: list[Point] = []
    elements: list[dict[int, int]] = []
    limits: list[dict[int, int]] = []
    for point in probing.planned_points():
        values = {**probing.float_scalars(DEFAULT_MODE), **point.scalars}
        values |= {
            one.position: 1
            for one in probing.signature.arguments
            if one.kind is ArgumentKind.SCALAR and one.position not in values
        }
        arguments = planned.arguments(point.global_size, point.local_size, values)
        points.append(point)
        elements.append(
            {one.position: one.elements for one in arguments if one.elements is not None}
        )
        limits.append({one.position: one.contents.limit for one in arguments if one.contents})
    records = probing.run_far(points, DEFAULT_MODE, limits)
    return frozenset(
        argument.position
        for index, argument in enumerate(pointers)
        for room, record in zip(elements, records, strict=True)
        if record is not None
        and not record.overflow
        and record.access_ranges[index].end_bytes
        > room[argument.position] * max(1, argument.element_bytes)
    )
