"""Choose the sizes at which a kernel is probed.

Owns the design of the probes. Every size varies alone and together with others. Scalars lie above
and below the NDRange, all of them and one at a time, so that probes see both sides of a guard
``id < n``. Sizes lie on both sides of every constant with which they are compared. The held-out
probes change everything at once. Pure and seeded: equal kernels get equal probes on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workers.plan.ndranges import small_shapes

_SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((8,), (32,), (12,), (64,), (160,)),
    2: ((8, 4), (4, 8), (16, 2), (6, 12), (16, 16)),
    3: ((4, 4, 4), (8, 2, 2), (2, 8, 4), (4, 2, 6), (6, 4, 2)),
}
"""Local sizes for kernels in which the local size can matter; some are not powers of two."""

_SPANS = {
    "below": {1: (8, 40), 2: (3, 14), 3: (2, 8)},
    "above": {1: (64, 160), 2: (20, 40), 3: (8, 15)},
    "mixed": {1: (8, 160), 2: (3, 40), 3: (2, 15)},
    "held-out": {1: (160, 240), 2: (56, 80), 3: (32, 36)},
}
"""Shortest and longest side of an NDRange, by tier and number of dimensions. In the tier "below"
the sides are below the scalars, in "above" they are above them, in "mixed" either. Held-out sides
are at least 4 times the longest side of "below"."""
_GROUPED_SPANS = {
    "below": {1: 160, 2: 20, 3: 12},
    "above": {1: 320, 2: 32, 3: 16},
    "mixed": {1: 320, 2: 32, 3: 16},
    "held-out": {1: 640, 2: 80, 3: 40},
}
"""Longest side for kernels that get several local sizes; at least 3 work-groups are allowed."""
_GROUPS = {
    "below": {1: (1, 8), 2: (1, 4), 3: (1, 3)},
    "above": {1: (6, 16), 2: (3, 6), 3: (2, 4)},
    "mixed": {1: (1, 16), 2: (1, 6), 3: (1, 4)},
    "held-out": {1: (32, 48), 2: (8, 11), 3: (6, 8)},
}
"""Work-groups in each dimension, for a kernel that requires one local size."""
_FEWEST_GROUPS = {"below": 1, "above": 2, "mixed": 1, "held-out": 5}
_SHORT, _NEAR, _LONG = (0.06, 0.75), (1.3, 3.0), (9.0, 18.0)
"""Ranges of scalars: as multiples of the shortest side (``_SHORT``), or of the longest side. A
guard such as ``4 * id + 3 < n`` needs ``_LONG``."""
_FLAG_SHARE = 0.6
_TINY = 4
_FEWEST_SHAPES = 3
_MOST_SINGLED_OUT = 4
_MOST_ITEMS = 2**16
CHALLENGES = ("value", "between", "planned")
"""Tiers of the held-out points that look for unknown guards; see ``challenges.py``."""
FURTHEST_THRESHOLD = 2**13
"""Largest constant for which cheap launches can have sizes on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The sizes of one probe. ``tier``: its side of the guards; ``scalars``: values by position."""

    tier: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    scalars: Mapping[int, int] = field(default_factory=dict)

    @property
    def work(self) -> int:
        """Estimated number of loop iterations; points are tried in the order of this number."""
        return math.prod(self.global_size) * (1 + max(self.scalars.values(), default=0))

    @property
    def is_tiny(self) -> bool:
        """Whether the point is a challenge with a scalar of 4 or less."""
        return self.tier in CHALLENGES and min(self.scalars.values(), default=_TINY + 1) <= _TINY

    @property
    def is_held_out(self) -> bool:
        """Whether the point is only for validation."""
        return self.tier in {"held-out", *CHALLENGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The inputs that decide a kernel's points.

    ``local_sizes``: local sizes to use; a single one if the local size cannot matter. ``largest``:
    the greatest value of each scalar's type. ``thresholds``: constants that need sizes on both
    sides. ``flags``: small values to try for some scalars. ``scale``: factor on sizes, below 1 for
    kernels with long loops.
    """

    dims: int
    local_sizes: tuple[tuple[int, ...], ...]
    largest: Mapping[int, int]
    thresholds: tuple[int, ...]
    flags: Mapping[int, tuple[int, ...]]
    seed: int
    scale: float = 1.0


def local_sizes(
    dims: int,
    *,
    uses_groups: bool,
    required: tuple[int, ...] | None,
    max_items: int,
    thresholds: Sequence[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """Return the local sizes of probes; a single work-item if the local size cannot matter.

    In one dimension the result includes the largest of ``thresholds`` that a work-group can have,
    and a larger local size.
    """
    if required is not None:
        return ((*required, 1, 1)[:dims],)
    if not uses_groups:
        return ((1,) * dims,)
    shapes = _SHAPES[dims]
    possible = [one for one in thresholds if shapes[-1][0] <= one < max_items]
    if dims == 1 and possible:
        shapes = (*shapes, (possible[-1],), (min(possible[-1] + 32, max_items),))
    return tuple(shape for shape in shapes if math.prod(shape) <= max_items)


def is_safe(shape: tuple[int, ...], overflowing: Sequence[tuple[int, ...]]) -> bool:
    """Whether this local size is below each overflowing local size in at least one dimension."""
    return not any(
        all(side >= least for side, least in zip(shape, one, strict=True)) for one in overflowing
    )


def local_sizes_within(
    shapes: Sequence[tuple[int, ...]], overflowing: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Return the safe local sizes among ``shapes``, and smaller ones if there are few.

    >>> local_sizes_within(((8,), (32,), (160,)), ((21,),))
    ((8,), (16,), (4,), (2,))
    """
    kept = [one for one in shapes if is_safe(one, overflowing)]
    if len(kept) < _FEWEST_SHAPES:
        small = small_shapes(len(shapes[0]))
        smaller = [one for one in small if is_safe(one, overflowing) and one not in kept]
        smaller.sort(key=lambda one: (-math.prod(one), max(one)))
        kept += smaller[: _FEWEST_SHAPES + 1 - len(kept)]
    return tuple(kept) or tuple(shapes)


def probe_points(design: Design) -> tuple[Point, ...]:
    """Return the points of a design, each once; the held-out points are last."""
    points: dict[tuple[object, ...], Point] = {}
    for point in _points(design):
        key = (point.global_size, point.local_size, *sorted(point.scalars.items()))
        points.setdefault(key, point)
    return tuple(points.values())


def _points(design: Design) -> Iterator[Point]:
    draws = random.Random(design.seed)  # noqa: S311  (no secret)
    for tier, count in _counts(design).items():
        for number in range(count):
            yield drawn_point(design, draws, tier, number)
    for tier in ("below", "above"):
        yield from _one_at_a_time(design, drawn_point(design, draws, tier, 0))
    for threshold in design.thresholds:
        for number in range(10 * (design.dims + len(design.largest))):
            yield _straddling(design, draws, threshold, number)
    for number in range(4 if design.largest else 0):
        yield _equal(design, drawn_point(design, draws, "mixed", number), number)
    for number in range(6):
        yield drawn_point(design, draws, "held-out", number)


def _counts(design: Design) -> dict[str, int]:
    """Return the number of points for each tier; more sizes get more points."""
    num_sizes = design.dims * (2 if len(design.local_sizes) > 1 else 1) + len(design.largest)
    counts = {"below": 14 + 4 * num_sizes, "above": 10 + 3 * num_sizes, "mixed": 10}
    if design.largest:
        counts["near"] = 8 + num_sizes
    if design.largest and max(map(math.prod, design.local_sizes)) > 1:
        counts |= dict.fromkeys(("few-groups", "in-group"), 8 + 2 * num_sizes)
    if len(design.largest) > 1:
        for position in list(design.largest)[:_MOST_SINGLED_OUT]:
            counts[f"short-{position}"] = 6 + num_sizes
            counts[f"long-{position}"] = 4 + num_sizes
    return counts


def drawn_point(design: Design, draws: random.Random, tier: str, number: int) -> Point:
    """Draw one point of a tier; ``number`` chooses the local size."""
    local = design.local_sizes[number % len(design.local_sizes)]
    span = {"few-groups": "above", "in-group": "mixed"}.get(tier, tier)
    span = span if span in _SPANS else "below"
    global_size = _drawn_sides(design, draws, span, local)
    longest, shortest = max(global_size), min(global_size)
    if tier == "few-groups":
        shortest = min(n // m for n, m in zip(global_size, local, strict=True))
    elif tier == "in-group":
        shortest = min(local)
    scalars = {}
    for position, largest in design.largest.items():
        is_below = tier in {"above", "few-groups", "in-group", f"short-{position}"}
        if tier.startswith("long-"):
            is_below = tier != f"long-{position}"
        if tier == "mixed":
            is_below = draws.random() < 0.5
        elif tier == "held-out":
            is_below = number % 3 < 2  # few large scalars: their long loops would be cut off
        share = _SHORT if is_below else _NEAR if tier in {"near", "mixed", "held-out"} else _LONG
        value = round((shortest if is_below else longest) * draws.uniform(*share))
        value += 0 if is_below else draws.randrange(3, 12)
        tried = design.flags.get(position)
        if tried and draws.random() < _FLAG_SHARE:
            scalars[position] = draws.choice(tried)
            continue
        fewest = 2 if tier in {"few-groups", "in-group"} else 3
        scalars[position] = min(max(fewest, value), largest)
    return Point(tier=tier, global_size=global_size, local_size=local, scalars=scalars)


def _drawn_sides(
    design: Design, draws: random.Random, span: str, local: tuple[int, ...]
) -> tuple[int, ...]:
    if len(design.local_sizes) == 1 and max(local) == 1:
        low, high = _SPANS[span][design.dims]
        return tuple(
            max(2, round(draws.uniform(low, high) * design.scale)) for _ in range(design.dims)
        )
    if len(design.local_sizes) == 1:
        low, high = _GROUPS[span][design.dims]
        high = max(low + 1, round(high * design.scale))
        groups = [draws.randint(low, high) for _ in local]
    else:
        longest = _GROUPED_SPANS[span][design.dims] * design.scale
        fewest = _FEWEST_GROUPS[span]
        groups = [draws.randint(fewest, max(fewest + 2, int(longest / side))) for side in local]
    while math.prod(groups) * math.prod(local) > _MOST_ITEMS and max(groups) > 1:
        largest = groups.index(max(groups))
        groups[largest] = max(1, groups[largest] // 2)
    return tuple(count * side for count, side in zip(groups, local, strict=True))


def _equal(design: Design, base: Point, number: int) -> Point:
    """Return a point with equal scalars; for an odd ``number``, they also equal the first side."""
    value = base.global_size[0] if number % 2 else base.global_size[0] // 2 + 3
    scalars = {position: min(value, largest) for position, largest in design.largest.items()}
    return Point(
        tier="mixed", global_size=base.global_size, local_size=base.local_size, scalars=scalars
    )


def _one_at_a_time(design: Design, base: Point) -> Iterator[Point]:
    yield base
    for axis in range(design.dims):
        sides = list(base.global_size)
        sides[axis] += base.local_size[axis] * (1 + axis)
        yield Point(
            tier=base.tier,
            global_size=tuple(sides),
            local_size=base.local_size,
            scalars=base.scalars,
        )
    # Local sizes with equal and different numbers of work-items, at equal global sizes.
    for first, second in zip(design.local_sizes, design.local_sizes[1:4:2], strict=False):
        sides = [math.lcm(a, b) for a, b in zip(first, second, strict=True)]
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
    """Return a point with one size clearly below or above a constant; all other sizes are small."""
    base = drawn_point(design, draws, "below", number)
    factor = draws.uniform(1.15, 2.4) if number % 2 else draws.uniform(0.2, 0.85)
    value = max(2, round(threshold * factor))
    which = (number // 2) % (design.dims + len(design.largest))
    sides, scalars = list(base.global_size), dict(base.scalars)
    if number % 4 == 3 and scalars:
        # For `id < n * threshold` the NDRange must exceed the product.
        scalars = {position: draws.randint(2, 4) for position in scalars}
        sides = [
            min(2 * value * 4, _MOST_ITEMS) if axis == which else 2 for axis in range(design.dims)
        ]
    elif which < design.dims:
        sides[which] = value
        if math.prod(whole_groups(sides, base.local_size)) > _MOST_ITEMS:
            sides = [value if axis == which else 2 for axis in range(design.dims)]
    else:
        position = list(scalars)[which - design.dims]
        scalars[position] = min(max(3, value), design.largest[position])
    return Point(
        tier=f"around-{threshold}",
        global_size=whole_groups(sides, base.local_size),
        local_size=base.local_size,
        scalars=scalars,
    )


def whole_groups(sides: Sequence[int], local: Sequence[int]) -> tuple[int, ...]:
    """Return the global size of whole work-groups that is nearest to ``sides``."""
    return tuple(
        max(1, round(side / group)) * group for side, group in zip(sides, local, strict=True)
    )
