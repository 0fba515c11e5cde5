"""Run the probes of one kernel and record their observations as numbers.

A point is the sizes of one probe (``points.py``). Owns the order of probing: the designed points;
smaller points if loops run too long; a few points again with other buffer contents; and the
challenges. ``judging.py`` draws the conclusions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmperf_common.failures import FailureCode
from llmperf_common.records import Argument, ArgumentKind, Device, Kernel, Signature
from workers.analysis.ascending import CUT_OFF, CutOffs, run_ascending
from workers.analysis.challenges import (
    Challenge,
    larger_local_sizes,
    planned_points,
    value_points,
)
from workers.analysis.content_modes import DEFAULT_MODE, ContentMode
from workers.analysis.facts import KernelFacts
from workers.analysis.fit import FEWEST_HELD_OUT, Observations
from workers.analysis.overflows import overflowing_local_sizes
from workers.analysis.points import (
    FURTHEST_THRESHOLD,
    Design,
    Point,
    is_safe,
    local_sizes,
    local_sizes_within,
    probe_points,
)
from workers.analysis.polynomials import Rows
from workers.analysis.seen import Seen
from workers.device.interface import DeviceFailure, Instrumented, ProbeLaunch, Prober, ProbeRecord
from workers.plan.inputs import SCALAR_TYPES

_LARGEST_SCALAR = 2**20
_MOST_THRESHOLDS = 5
_SCALES = (1.0, 0.5, 0.25)
_MOST_CUT_OFF = 0.15
"""Share of probes with cut-off loops above which smaller sizes are tried."""
HEAVY_TURNS = 2**18
"""If a point makes more loop iterations than this, heavier points are left out. Loops with barriers
cannot be cut off, so such points could take very long."""
_FITTED_TURNS, _HELD_OUT_TURNS = 2**17, 2**21
"""Iterations after which the loops of a probe are cut off. The first number is for probes that
forms are fitted to, the second for held-out probes, which are larger."""
_MOST_TURNS = {"held-out": _HELD_OUT_TURNS, "planned": _HELD_OUT_TURNS}
_CHUNK = 16
_LARGEST_CHUNK = 2
_MOST_UNCUT_WORK = 2**23
"""Largest work of a challenge to a kernel whose loops cannot be cut off."""
_FARTHEST_BYTES = 2**38
"""Offset in bytes above which no larger challenge is tried; a tag (``copy/tags.cl``) holds offsets
below 2**43."""
_MOST_ACCESSES = 2**22
"""Maximum product of work-items and accesses in the text; large probes with more are left out."""
_TRIED_SCALARS = (4, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """A device's limits on probe launches. ``max_work_group_size``: in work-items."""

    max_work_group_size: int


def probe_limits(device: Device) -> ProbeLimits:
    """Return the limits of a device's probe launches."""
    return ProbeLimits(max_work_group_size=device.max_work_group_size)


class Probing:
    """Runs all launches for one kernel.

    Args:
        kernel: a kernel with a signature.
        instrumented: its instrumented copy.
        facts: the facts of its text.
        prober: runs the launches on a device.
        limits: the device's limits.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        instrumented: Instrumented,
        facts: KernelFacts,
        prober: Prober,
        limits: ProbeLimits,
    ) -> None:
        assert kernel.signature is not None, "only kernels with a signature are probed"
        self._kernel = kernel
        self.signature: Signature = kernel.signature
        self._instrumented = instrumented
        self._prober = prober
        self.has_uncut_loops = instrumented.has_uncut_loops
        self._local_sizes = local_sizes(
            self.signature.dims,
            uses_groups=facts.uses_groups,
            required=self.signature.required_local_size,
            max_items=limits.max_work_group_size,
            thresholds=facts.thresholds,
        )
        self._larger_local_sizes = larger_local_sizes(
            self.signature.dims,
            uses_groups=facts.uses_groups,
            required=self.signature.required_local_size,
            max_items=limits.max_work_group_size,
            tested=facts.tested,
        )
        self._tested = facts.tested
        self._max_items = limits.max_work_group_size
        self._has_groups = facts.uses_groups
        self._largest = {
            position: _largest_value(self.signature.arguments[position])
            for position in facts.scalars
        }
        self._thresholds = straddled(facts)
        self._flags = facts.flags
        self._seed = int(kernel.kernel_id[:12], 16)
        self.names = self._variable_names()
        self.identities = self._identities()

    def keep_within_arrays(self) -> tuple[tuple[int, ...], ...]:
        """Return the smallest local sizes that overflow an array; later probes use smaller ones."""
        if not self._has_groups or self.signature.required_local_size is not None:
            return ()
        if not self._instrumented.has_arrays:
            return ()
        found = overflowing_local_sizes(self.signature.dims, self._max_items, self._overflows)
        if found:
            self._local_sizes = local_sizes_within(self._local_sizes, found)
            larger = self._larger_local_sizes
            self._larger_local_sizes = tuple(one for one in larger if is_safe(one, found))
        return found

    def _overflows(self, shapes: Sequence[tuple[int, ...]]) -> list[bool]:
        """Try each local size with small and large scalars; return whether an array overflows."""
        answers = []
        for shape in shapes:
            global_size = (2 * shape[0], *shape[1:])
            turns = []
            overflow = False
            for value in (*_TRIED_SCALARS, 2 * max(shape)):
                scalars = {position: min(value, most) for position, most in self._largest.items()}
                point = Point(
                    tier="local", global_size=global_size, local_size=shape, scalars=scalars
                )
                (record,) = self.run([point])
                turns.append(record.turns if record is not None else 0)
                overflow = overflow or (record is not None and record.overflow)
                is_heavy = len(turns) > 1 and turns[-1] ** 2 > HEAVY_TURNS * max(1, turns[-2])
                if overflow or is_heavy or not scalars:
                    break
            answers.append(overflow)
        return answers

    def designed(self) -> Seen:
        """Run the designed points, with a smaller scale if too many loops are cut off."""
        seen = self._at_scale(_SCALES[0])
        for scale in _SCALES[1:]:
            if seen.cut_off_share <= _MOST_CUT_OFF:
                break
            seen = self._at_scale(scale)
        return seen

    def _at_scale(self, scale: float) -> Seen:
        """Run the points of one scale; not all of them if a smaller scale is needed anyway."""
        points = probe_points(self._design(scale))
        fitted = [one for one in points if not one.is_held_out]
        held_out = [one for one in points if one.is_held_out]
        is_last = scale == _SCALES[-1]
        cut_offs = CutOffs(
            HEAVY_TURNS, len(points) if is_last else int(_MOST_CUT_OFF * len(points))
        )
        records = run_ascending(fitted, _CHUNK, self.run, cut_offs.is_enough)
        if cut_offs.too_many:
            records += [CUT_OFF] * len(held_out)
        else:
            few = CutOffs(HEAVY_TURNS, len(held_out))
            records += run_ascending(held_out, FEWEST_HELD_OUT, self.run, few.is_enough)
        return self._counted([*fitted, *held_out], records)

    def challenged(self) -> Seen:
        """Run points that no form is fitted to: unusual scalars, and the sizes of plans."""
        values, planned = value_points(self._challenge()), self.planned_points()
        if self.has_uncut_loops:
            values = tuple(one for one in values if one.work <= _MOST_UNCUT_WORK)
        heaviest = HEAVY_TURNS if self.has_uncut_loops else _HELD_OUT_TURNS
        records = run_ascending(values, _CHUNK, self.run_far, _too_heavy(HEAVY_TURNS))
        records += run_ascending(planned, _LARGEST_CHUNK, self.run_far, _too_heavy(heaviest))
        return self._counted([*values, *planned], records)

    def run_far(
        self,
        points: Sequence[Point],
        mode: ContentMode = DEFAULT_MODE,
        limits: Sequence[Mapping[int, int]] = (),
    ) -> tuple[ProbeRecord | None, ...]:
        """Launch as ``run`` does; None for a point where an index is too large for the copy.

        In the instrumented copy a pointer is a tag, which holds offsets below 2**43 bytes only
        (``copy/tags.cl``). An access with a larger offset is ``unsupported``.
        """
        try:
            return self.run(points, mode, limits)
        except DeviceFailure as error:
            if error.sticky or error.failure.code is not FailureCode.UNSUPPORTED:
                raise
            if len(points) == 1:
                return (None,)
        return tuple(
            record
            for number, one in enumerate(points)
            for record in self.run_far([one], mode, limits[number : number + 1])
        )

    def planned_points(self) -> tuple[Point, ...]:
        """Return points like those of plans, except points with too many accesses."""
        most_items = _MOST_ACCESSES // max(1, len(self._instrumented.sites))
        return tuple(
            one
            for one in planned_points(self._challenge())
            if math.prod(one.global_size) <= most_items
            and (one.work <= _MOST_UNCUT_WORK or not self.has_uncut_loops)
        )

    def _challenge(self) -> Challenge:
        return Challenge(
            design=self._design(1.0),
            scalars=[self.signature.arguments[position] for position in self._largest],
            tested=self._tested,
            local_sizes=(*self._larger_local_sizes, *self._local_sizes[:1]),
        )

    def _design(self, scale: float) -> Design:
        return Design(
            dims=self.signature.dims,
            local_sizes=self._local_sizes,
            largest=self._largest,
            thresholds=self._thresholds,
            flags=self._flags,
            seed=self._seed,
            scale=scale,
        )

    def run(
        self,
        points: Sequence[Point],
        mode: ContentMode = DEFAULT_MODE,
        limits: Sequence[Mapping[int, int]] = (),
    ) -> tuple[ProbeRecord | None, ...]:
        """Launch at ``points``; ``limits``: for each point, limits of values in some buffers."""
        launches = [
            ProbeLaunch(
                global_size=point.global_size,
                local_size=point.local_size,
                scalars={**self.float_scalars(mode), **point.scalars},
                seed=mode.seed,
                default_limit=mode.limit,
                limits=limits[number] if limits else {},
                spread=mode.spread,
                max_turns=_MOST_TURNS.get(point.tier, _FITTED_TURNS),
            )
            for number, point in enumerate(points)
        ]
        return self._prober.run(self._kernel, self._instrumented, launches)

    def observations(self, points: Sequence[Point], extents: Iterable[int]) -> Observations:
        """Return the observations of one buffer for the fit."""
        return Observations(
            names=self.names,
            rows=self.rows(points),
            extents=np.array(list(extents), dtype=np.int64),
            tiers=np.array([point.tier for point in points]),
            held_out=np.array([point.is_held_out for point in points]),
            identities=self.identities,
        )

    def rows(self, points: Sequence[Point]) -> Rows:
        """Return the sizes of each point in the order of ``names``, shape (n, variables)."""
        return np.array([self._row(point) for point in points], dtype=np.int64)

    def choices(self) -> list[frozenset[int]]:
        """Return sets of variables to leave out, to be tried in turn.

        With only one local size, the number of groups and the global size are proportional, so one
        of the two is left out.
        """
        if not self._has_groups or len(self._local_sizes) > 1:
            return [frozenset()]
        dims = self.signature.dims
        return [
            frozenset(2 * dims + axis if keeps else axis for axis, keeps in enumerate(kept))
            for kept in itertools.product((True, False), repeat=dims)
        ]

    def _row(self, point: Point) -> list[int]:
        row = list(point.global_size)
        if self._has_groups:
            row += point.local_size
            row += [n // m for n, m in zip(point.global_size, point.local_size, strict=True)]
        return row + [point.scalars[position] for position in self._largest]

    def _variable_names(self) -> tuple[str, ...]:
        dims = range(self.signature.dims)
        names = [f"global_size_{axis}" for axis in dims]
        if self._has_groups:
            names += [f"local_size_{axis}" for axis in dims]
            names += [f"num_groups_{axis}" for axis in dims]
        return (*names, *(self.signature.arguments[one].name for one in self._largest))

    def _identities(self) -> frozenset[tuple[int, int]]:
        """Return, for each dimension, the indices of two variables.

        These are the local size and the number of groups, whose product is the global size.
        """
        dims = self.signature.dims
        if not self._has_groups:
            return frozenset()
        return frozenset((dims + axis, 2 * dims + axis) for axis in range(dims))

    def float_scalars(self, mode: ContentMode) -> dict[int, float]:
        """Return the values of the floating-point scalars by position."""
        return {
            one.position: mode.floats
            for one in self.signature.arguments
            if one.kind is ArgumentKind.SCALAR and SCALAR_TYPES[one.scalar_type].dtype.kind == "f"
        }

    def _counted(self, points: Sequence[Point], records: Sequence[ProbeRecord | None]) -> Seen:
        done = [(p, r) for p, r in zip(points, records, strict=True) if r is not None]
        kept = [(p, r) for p, r in done if not r.exceeded and not r.overflow]
        num_done = max(1, len(done))
        return Seen(
            points=tuple(point for point, _ in kept),
            records=tuple(record for _, record in kept),
            cut_off_share=sum(record.exceeded for _, record in done) / num_done,
            overflow_share=sum(record.overflow for _, record in done) / num_done,
        )


def _too_heavy(heaviest: int) -> Callable[[Sequence[ProbeRecord]], bool]:
    """Return whether a record has more loop iterations, or an offset near the largest of a tag."""
    return lambda records: any(one.turns > heaviest or _is_far(one) for one in records)


def _is_far(record: ProbeRecord) -> bool:
    """Whether an access is more than ``_FARTHEST_BYTES`` from its buffer's start."""
    return any(
        max(abs(one.start_bytes), abs(one.end_bytes)) > _FARTHEST_BYTES
        for one in record.access_ranges
    )


def straddled(facts: KernelFacts) -> tuple[int, ...]:
    """Return constants, spread out, that get probes on both sides; compared ones have priority."""
    near = [one for one in facts.thresholds if one <= FURTHEST_THRESHOLD]
    folds = [one for one in facts.folds if one <= FURTHEST_THRESHOLD and one not in near]
    chosen = _spread(near, _MOST_THRESHOLDS)
    return tuple(sorted({*chosen, *_spread(folds, _MOST_THRESHOLDS - len(chosen))}))


def _spread(ordered: Sequence[int], most: int) -> list[int]:
    if len(ordered) <= most:
        return list(ordered)
    if most < 2:
        return list(ordered[-most:]) if most else []
    return [ordered[round(index * (len(ordered) - 1) / (most - 1))] for index in range(most)]


def _largest_value(argument: Argument) -> int:
    dtype = SCALAR_TYPES[argument.scalar_type].dtype
    return min(_LARGEST_SCALAR, int(np.iinfo(dtype).max))
