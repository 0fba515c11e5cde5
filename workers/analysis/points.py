"""At which sizes a kernel is probed.

Owns the design of the probes: every size varies on its own and together with the others; scalars lie above
and below the NDRange, all of them and one at a time, so that both sides of a guard ``id < n`` are seen; sizes
lie on both sides of every constant they are compared with; the held-out probes change everything at once.
Pure and seeded: equal kernels are probed alike wherever they run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((8,), (32,), (12,), (64,), (160,)),
    2: ((8, 4), (4, 8), (16, 2), (6, 12), (16, 16), (12, 3)),
    3: ((4, 4, 4), (8, 2, 2), (2, 8, 4), (4, 2, 6), (6, 4, 2), (8, 4, 4)),
}
"""Local sizes, where the local size can matter; some no powers of two."""

_LOW = {1: (8, 40), 2: (3, 14), 3: (2, 8)}
_HIGH = {1: (64, 160), 2: (20, 40), 3: (8, 15)}
"""Sides of an NDRange that is below, or above, its scalars."""
_MOST_ITEMS = 2**16
FURTHEST_THRESHOLD = 2**13
"""Constants beyond cannot be straddled by a launch that is cheap."""
HELD_OUT_FACTOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The sizes of one probe. ``tier`` names the side of the guards that it is on; ``scalars`` by position."""

    tier: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    scalars: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_held_out(self) -> bool:
        """Whether it is for validation only."""
        return self.tier == "held-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What the points are a function of.

    ``local_sizes``: those to use, one where the local size cannot matter. ``largest``: the greatest value
    that each scalar's type holds. ``thresholds``: constants to straddle. ``scale``: below 1 for kernels whose
    loops run long.
    """

    dims: int
    local_sizes: tuple[tuple[int, ...], ...]
    largest: Mapping[int, int]
    thresholds: tuple[int, ...]
    seed: int
    scale: float = 1.0


def local_sizes(
    dims: int, *, uses_groups: bool, required: tuple[int, ...] | None, max_items: int
) -> tuple[tuple[int, ...], ...]:
    """Return the local sizes to probe with; a single work-item where the local size cannot matter."""
    if required is not None:
        return ((*required, 1, 1)[:dims],)
    if not uses_groups:
        return ((1,) * dims,)
    return tuple(shape for shape in _SHAPES[dims] if math.prod(shape) <= max_items)


def probe_points(design: Design) -> tuple[Point, ...]:
    """Return the points of a design, each once, the held-out ones last."""
    points: dict[tuple[object, ...], Point] = {}
    for point in _points(design):
        key = (point.global_size, point.local_size, *sorted(point.scalars.items()))
        points.setdefault(key, point)
    return tuple(points.values())


def _points(design: Design) -> Iterator[Point]:
    draws = random.Random(design.seed)  # noqa: S311  (no secret)
    num_sizes = design.dims * (2 if len(design.local_sizes) > 1 else 1) + len(design.largest)
    for number in range(18 + 4 * num_sizes):
        yield _drawn(design, draws, "below", number)
    for number in range(10 + 3 * num_sizes):
        yield _drawn(design, draws, "above", number)
    for tier in ("below", "above"):
        yield from _one_at_a_time(design, _drawn(design, draws, tier, 0))
    if len(design.largest) > 1:
        for position in list(design.largest)[:4]:
            for number in range(6 + num_sizes):
                yield _drawn(design, draws, f"short-{position}", number)
            for number in range(4 + num_sizes):
                yield _drawn(design, draws, f"long-{position}", number)
    for threshold in design.thresholds:
        for number in range(8 + 2 * num_sizes):
            yield _straddling(design, draws, threshold, number)
    for number in range(10):
        yield _drawn(design, draws, "mixed", number)
    for number in range(4):
        yield _drawn(design, draws, "held-out", number)


def _drawn(design: Design, draws: random.Random, tier: str, number: int) -> Point:
    low, high = (_HIGH if tier == "above" else _LOW)[design.dims]
    scale = design.scale
    if tier == "held-out":
        scale *= HELD_OUT_FACTOR
    elif tier == "mixed":
        high = _HIGH[design.dims][1]
    local = design.local_sizes[number % len(design.local_sizes)]
    sides = [max(2, round(draws.uniform(low, high) * scale)) for _ in range(design.dims)]
    if tier == "mixed" and number % 2:
        sides = [max(2, round(math.exp(draws.uniform(math.log(low), math.log(high))) * scale)) for _ in sides]  # fmt: skip
    global_size = _whole_groups(sides, local)
    longest, shortest = max(global_size), min(global_size)
    scalars = {}
    for position, largest in design.largest.items():
        is_below = tier in {"above", f"short-{position}"}
        if tier.startswith("long-"):
            is_below = tier != f"long-{position}"
        if tier in {"mixed", "held-out"}:
            is_below = draws.random() < 0.5
        if is_below:
            value = round(shortest * draws.uniform(0.15, 0.75))
        else:
            value = round(longest * draws.uniform(1.3, 3.0)) + draws.randrange(3, 12)
        scalars[position] = min(max(3, value), largest)
    return Point(tier=tier, global_size=global_size, local_size=local, scalars=scalars)


def _one_at_a_time(design: Design, base: Point) -> Iterator[Point]:
    for axis in range(design.dims):
        sides = list(base.global_size)
        sides[axis] += base.local_size[axis] * (1 + axis)
        yield Point(
            tier=base.tier,
            global_size=tuple(sides),
            local_size=base.local_size,
            scalars=base.scalars,
        )
    if len(design.local_sizes) > 1:
        first, second = design.local_sizes[:2]
        sides = [math.lcm(a, b) * 2 for a, b in zip(first, second, strict=True)]
        for local in (first, second):
            yield Point(
                tier=base.tier, global_size=tuple(sides), local_size=local, scalars=base.scalars
            )
    for position, value in base.scalars.items():
        scalars = {**base.scalars, position: min(value + 1, design.largest[position])}
        yield Point(
            tier=base.tier,
            global_size=base.global_size,
            local_size=base.local_size,
            scalars=scalars,
        )


def _straddling(design: Design, draws: random.Random, threshold: int, number: int) -> Point:
    """Return sizes of which each is clearly below or clearly above a constant, in any mixture."""

    def side(is_above: bool) -> int:
        span = (1.15, 2.4) if is_above else (0.2, 0.85)
        return max(2, round(threshold * draws.uniform(*span)))

    local = design.local_sizes[number % len(design.local_sizes)]
    pattern = draws.getrandbits(16)
    sides = [side(bool(pattern >> axis & 1)) for axis in range(design.dims)]
    while math.prod(_whole_groups(sides, local)) > _MOST_ITEMS and max(sides) > 2:
        longest = sides.index(max(sides))
        sides[longest] = max(2, sides[longest] // 3)
    scalars = {
        position: min(max(3, side(bool(pattern >> (4 + index) & 1))), largest)
        for index, (position, largest) in enumerate(design.largest.items())
    }
    return Point(
        tier=f"around-{threshold}",
        global_size=_whole_groups(sides, local),
        local_size=local,
        scalars=scalars,
    )


def _whole_groups(sides: Sequence[int], local: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        max(1, round(side / group)) * group for side, group in zip(sides, local, strict=True)
    )
