"""Choose sizes at which a fitted form must prove itself: unusual values, and the sizes of plans.

The designed probes (``points.py``) lie on both sides of every known guard. Challenges look for
guards that are not known: a helper that tests a scalar for 7, a division that gives 0 for all small
ids, a guard whose bound lies between two sides of the NDRange. No form is fitted to challenges;
they only refute forms. Pure and seeded.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmperf_common.records import Argument
from workers.analysis.points import Design, Point, drawn_point, whole_groups
from workers.plan.ndranges import local_shapes
from workers.plan.strategies.scalars import LOOP_LIMITS, drawn_value, role_value

LARGEST_SIDE = 2**17
"""Maximum work-items of a probe in one dimension. So probes miss a division of ids by a larger
number."""

_USUAL_VALUES = (
    1,
    2,
    3,
    4,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    100,
    127,
    128,
    255,
    256,
    512,
    1000,
    1024,
    4096,
)
_MOST_TESTED, _MOST_SQUARED, _MOST_PAIRS, _MOST_POINTS = 24, 4, 12, 480
_SIDES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((128,), (1056,), (8160,), (33_000,), (LARGEST_SIDE,)),
    2: ((64, 1), (128, 2), (8, 32), (1056, 96), (96, 1056), (360, 364), (2**16, 2), (2, 2**16)),
    3: (
        (4, 4, 4), (64, 2, 1), (2, 64, 2), (1, 2, 64), (48, 52, 40),
        (2**14, 2, 2), (2, 2**14, 2), (2, 2, 2**14),
    ),
}  # fmt: skip
_LARGER_LOCAL: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((256,), (1024,)),
    2: ((64, 4), (8, 32), (128, 2)),
    3: ((32, 4, 2), (8, 8, 8)),
}
"""Local sizes of plans that the designed probes do not use. They are few, because some devices
compile a kernel anew for each local size."""
_LOCAL_STEP = 32
_MOST_LOCAL_TESTED = 3
_MOST_FLAT = 2
"""Maximum work-items of an NDRange, in multiples of ``LARGEST_SIDE``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The inputs that decide a kernel's challenges.

    ``design``: the design of the fitted points. ``scalars``: the arguments whose positions are in
    ``design.largest``. ``tested``: constants that the code compares with anything.
    ``local_sizes``: local sizes for the large NDRanges.
    """

    design: Design
    scalars: Sequence[Argument]
    tested: tuple[int, ...]
    local_sizes: tuple[tuple[int, ...], ...]


def larger_local_sizes(
    dims: int,
    *,
    uses_groups: bool,
    required: tuple[int, ...] | None,
    max_items: int,
    tested: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """Return local sizes that plans use but designs do not; some have constants that code tests.

    >>> larger_local_sizes(1, uses_groups=True, required=None, max_items=512, tested=(7, 96))
    ((256,), (224,), (96,))
    """
    if required is not None or not uses_groups:
        return ()
    shapes = list(_LARGER_LOCAL[dims])
    tested_sides = {side for side in tested if side > 1}
    if dims == 1:
        # Code may compare a constant with the local size, or with the number of warps.
        wanted = [side for one in tested for side in (one, one * _LOCAL_STEP)]
        wanted = [side for side in wanted if side % _LOCAL_STEP == 0 and (side,) not in shapes]
        shapes += [(side,) for side in dict.fromkeys(wanted) if side <= max_items][
            :_MOST_LOCAL_TESTED
        ]
    else:
        planned = local_shapes(dims, max_items, (max_items,) * dims, few=False)
        named = [one for one in planned if one not in shapes and not tested_sides.isdisjoint(one)]
        shapes += named[:_MOST_LOCAL_TESTED]
    return tuple(one for one in shapes if math.prod(one) <= max_items)


def value_points(challenge: Challenge) -> tuple[Point, ...]:
    """Return small NDRanges with unusual scalars, or scalars between two sides of the NDRange."""
    points: dict[tuple[object, ...], Point] = {}
    for point in itertools.islice(_valued(challenge), _MOST_POINTS):
        key = (point.global_size, point.local_size, *sorted(point.scalars.items()))
        points.setdefault(key, point)
    return tuple(points.values())


def planned_points(challenge: Challenge) -> tuple[Point, ...]:
    """Return points like those of plans, up to ``LARGEST_SIDE``; scalars are by role or drawn."""
    draws = random.Random(challenge.design.seed + 2)  # noqa: S311  (no secret)
    points: dict[tuple[object, ...], Point] = {}
    for number, sides in enumerate(_SIDES[challenge.design.dims]):
        for turn in range(3):
            local = challenge.local_sizes[(number + turn) % len(challenge.local_sizes)]
            global_size = whole_groups(sides, local)
            limit = LOOP_LIMITS[(number + turn) % len(LOOP_LIMITS)]
            scalars = _planned_scalars(challenge, global_size, limit, draws if turn else None)
            point = Point(
                tier="planned", global_size=global_size, local_size=local, scalars=scalars
            )
            if math.prod(global_size) <= _MOST_FLAT * LARGEST_SIDE:
                points.setdefault((global_size, local, *sorted(scalars.items())), point)
    return tuple(points.values())


def _planned_scalars(
    challenge: Challenge, global_size: tuple[int, ...], limit: int, draws: random.Random | None
) -> Mapping[int, int]:
    """Return the scalars of the strategy ``memory_analysis``, or ``decoupled`` with ``draws``."""
    found = {}
    for argument in challenge.scalars:
        value = role_value(argument, global_size, limit)
        if draws is not None:
            value = drawn_value(argument, global_size, draws.random(), 4 * limit)
        found[argument.position] = min(int(value), challenge.design.largest[argument.position])
    return found


def _valued(challenge: Challenge) -> Iterator[Point]:
    design = challenge.design
    if not design.largest:
        return
    draws = random.Random(design.seed + 1)  # noqa: S311  (no secret)
    for number in range(4 * (design.dims + len(design.largest))):
        yield _between(design, draws, number)
    named = challenge.tested[:_MOST_TESTED]
    tested = {near for one in named for near in (one - 1, one, one + 1)}
    tested |= {one * other for one in named[:_MOST_SQUARED] for other in named[:_MOST_SQUARED]}
    values = sorted({*_USUAL_VALUES, *(one for one in tested if one > 0)})
    for number, value in enumerate(values):
        base = drawn_point(design, draws, "mixed", number)
        yield _with(design, base, dict.fromkeys(base.scalars, value))
    for number, (first, second) in enumerate(itertools.permutations(design.largest, 2)):
        if number == _MOST_PAIRS:
            break
        base = drawn_point(design, draws, "mixed", number)
        for value in (2 * base.scalars[second], base.scalars[second] + 1):
            yield _with(design, base, {**base.scalars, first: value})
    for position in design.largest:
        for number, value in enumerate(values):
            for tier in ("below", "above"):
                base = drawn_point(design, draws, tier, number)
                yield _with(design, base, {**base.scalars, position: value})


def _between(design: Design, draws: random.Random, number: int) -> Point:
    """Return a point where each scalar lies between two sizes that code may compare it with."""
    base = drawn_point(design, draws, "mixed", number)
    sides = list(base.global_size)
    stretched = number % design.dims
    sides[stretched] *= 2 + number % 3
    global_size = whole_groups(sides, base.local_size)
    counts = [n // m for n, m in zip(global_size, base.local_size, strict=True)]
    limits = sorted({2, *global_size, *counts, *base.local_size})
    scalars = {}
    for position in base.scalars:
        at = draws.randrange(len(limits))
        low, high = limits[max(0, at - 1)], limits[at]
        scalars[position] = draws.randint(low, high)
    if number % 2:  # guards of a square usually compare one scalar with all sides
        low, high = min(global_size), max(global_size)
        scalars = dict.fromkeys(scalars, draws.randint(low, high))
    point = Point(
        tier="between", global_size=global_size, local_size=base.local_size, scalars=scalars
    )
    return _with(design, point, scalars, tier="between")


def _with(design: Design, base: Point, scalars: Mapping[int, int], tier: str = "value") -> Point:
    fitting = {
        position: min(value, design.largest[position]) for position, value in scalars.items()
    }
    return Point(
        tier=tier, global_size=base.global_size, local_size=base.local_size, scalars=fitting
    )
