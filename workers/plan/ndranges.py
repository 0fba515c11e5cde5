"""Draw NDRanges: the number, the shape and the arrangement of the work-groups.

Owns regimes, local shapes, the sampler and the caps on sizes. Pure: every draw comes from a
generator seeded with the content of the request, so another machine or a resumed run draws the same
NDRanges. Does not own the arguments of a launch; ``launch_plan.py`` gets them.

The generator is Python's Mersenne Twister. Only its ``random()`` is used, because Python promises
that this method's sequence for an integer seed never changes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from llmperf_common.features.regimes import UNDER_UTILISED_GROUPS_PER_UNIT
from llmperf_common.ids import content_id

MAX_ASPECT = 4
"""Longest ÷ shortest side of a 2-D or 3-D NDRange, unless the local size forces a larger one."""

_SHAPES_2D = (
    (8, 8), (16, 4), (4, 16), (16, 8), (8, 16), (32, 2), (64, 1), (32, 4), (16, 16), (32, 8),
    (64, 4), (128, 2), (8, 32), (32, 16), (64, 8), (16, 32), (32, 32), (64, 16), (128, 8),
)  # fmt: skip
_SHAPES_3D = (
    (4, 4, 4), (8, 4, 2), (16, 2, 2), (8, 4, 4), (16, 4, 2), (32, 2, 2), (8, 8, 2), (8, 8, 4),
    (16, 4, 4), (32, 4, 2), (8, 8, 8), (16, 8, 4), (32, 4, 4), (16, 8, 8), (32, 8, 4),
)  # fmt: skip
_STEP_1D, _LARGEST_1D = 32, 1024
_NUM_FEW_SHAPES = 6  # 2-D or 3-D shapes with ``plan.local_sizes`` "few"
_ARRANGEMENTS_TRIED = 16  # random arrangements tried to stay within MAX_ASPECT
_REDRAWS = 8
"""Maximum draws per wanted NDRange, because there may be fewer different NDRanges than wanted."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """Everything that decides the drawn NDRanges.

    ``shapes``: local sizes that the kernel and the device allow. ``max_side``: longest side of the
    global size for which the buffers fit. The shares and caps are as in ``PlanConfig``. ``fits``:
    tells whether the buffers of a (global size, local size) can be allocated; None if ``max_side``
    alone decides that. A larger NDRange is assumed to need more memory.
    """

    key: str
    dims: int
    sibling_share: float
    shapes: tuple[Shape, ...]
    compute_units: int
    num_wanted: int
    max_side: int
    max_work_items: int
    max_groups_per_unit: int
    idle_share: float
    under_share: float
    stratified: bool
    fits: Callable[[Shape, Shape], bool] | None = None


class Draws:
    """A reproducible source of random numbers, in which equal keys give equal sequences.

    >>> Draws("a").below(1000) == Draws("a").below(1000)
    True
    """

    def __init__(self, key: str) -> None:
        self._random = random.Random(int(content_id("draws", key), 16))  # noqa: S311  (no secret)

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()

    def below(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        return min(int(self._random.random() * limit), limit - 1)

    def log_uniform(self, low: int, high: int, at: float) -> int:
        """Return the integer at the share ``at`` of the way from low to high, on a log scale."""
        return log_uniform(low, high, at)


def log_uniform(low: int, high: int, at: float) -> int:
    """Return the integer at the share ``at`` of the way from low to high, on a log scale.

    >>> log_uniform(1, 1000, 0.5)
    31
    """
    value = math.exp(math.log(low) + at * (math.log(high + 1) - math.log(low)))
    return min(max(int(value), low), high)


def local_shapes(
    dims: int, max_work_group_size: int, max_sides: Shape, *, few: bool
) -> tuple[Shape, ...]:
    """Return the local sizes that plans draw from and the device allows."""
    choices: tuple[Shape, ...]
    if dims == 1:
        choices = tuple((size,) for size in range(_STEP_1D, _LARGEST_1D + 1, _STEP_1D))
        if few:
            choices = tuple((size,) for (size,) in choices if size & (size - 1) == 0)
    else:
        choices = _SHAPES_2D if dims == 2 else _SHAPES_3D
        if few:
            choices = choices[:_NUM_FEW_SHAPES]
    allowed = tuple(
        shape
        for shape in choices
        if math.prod(shape) <= max_work_group_size
        and all(side <= most for side, most in zip(shape, max_sides, strict=False))
    )
    # Only for a device with very small work-groups: the largest power of two that it allows, and 1.
    largest = 1 << (min(max_work_group_size, *max_sides[:1]).bit_length() - 1)
    rest = (1,) * (dims - 1)
    return allowed or tuple(dict.fromkeys([(largest, *rest), (1, *rest)]))


def small_shapes(dims: int) -> tuple[Shape, ...]:
    """Return local sizes with fewer work-items than any of ``local_shapes``: powers of two.

    They are for kernels whose own arrays are too small for ``local_shapes``.

    >>> small_shapes(1)
    ((1,), (2,), (4,), (8,), (16,))
    """
    smallest = min(map(math.prod, (_SHAPES_2D, _SHAPES_3D)[dims - 2])) if dims > 1 else _STEP_1D
    sides = [1 << bit for bit in range(_STEP_1D.bit_length())]
    return tuple(
        shape for shape in itertools.product(sides, repeat=dims) if math.prod(shape) < smallest
    )


def draw_sizes(request: SizeRequest) -> tuple[tuple[Shape, Shape], ...]:
    """Return distinct (global size, local size) pairs in the order in which to run them.

    Each regime gets its share of pairs, spread evenly over its work-group counts on a log scale.
    If the size limits exclude a regime, its share goes to the largest work-group counts that fit.
    If a regime has too few NDRanges, the next regime gets the missing pairs. The order is random,
    so that a drift of the device does not look like an effect of size.
    """
    most_groups = _most_groups_by_shape(request)
    if not most_groups:
        return ()
    draws = Draws(request.key)
    found: dict[tuple[Shape, Shape], None] = {}
    total = 0
    for low, high, share in _ranges(request):
        # This regime's share also gets the pairs that earlier regimes could not give.
        total += share
        wanted = total - len(found)
        most_groups_of = {
            shape: most for shape, most in most_groups.items() if most >= low
        } or most_groups
        choices = list(most_groups_of.items())
        # Siblings count towards the regime's share, so fewer slots cover the same range.
        num_slots = max(1, math.ceil(wanted / (1 + request.sibling_share)))
        for attempt in range(wanted * _REDRAWS):
            if len(found) >= total:
                break
            slot = attempt if attempt < num_slots else draws.below(num_slots)
            shape, most = choices[draws.below(len(choices))]
            bounds = (min(low, most), min(high, most))
            target = draws.log_uniform(*bounds, at=(slot + draws.unit()) / num_slots)
            groups = _arranged(request, draws, shape, target, bounds)
            sides = _sides(groups, shape)
            if not _fits_memory(request, sides, shape):
                sides = _sides(_near_square(shape, target), shape)
                if not _fits_memory(request, sides, shape):
                    continue
            found.setdefault((sides, shape), None)
            if len(found) < total and draws.unit() < request.sibling_share:
                sibling = _sibling(draws, sides, shape, most_groups_of, (low, high))
                if sibling and _fits_memory(request, sides, sibling):
                    found.setdefault((sides, sibling), None)
    pairs = list(found)
    for last in range(len(pairs) - 1, 0, -1):
        other = draws.below(last + 1)
        pairs[last], pairs[other] = pairs[other], pairs[last]
    return tuple(pairs)


def _sibling(
    draws: Draws,
    sides: Shape,
    shape: Shape,
    most_groups_of: dict[Shape, int],
    bounds: tuple[int, int],
) -> Shape | None:
    """Return another local size for a global size, within the same regime; None if none fits.

    A model learns the choice of a local size from such pairs, because nothing else differs in them.
    """
    fitting = [
        other
        for other in most_groups_of
        if other != shape
        and all(side % part == 0 for side, part in zip(sides, other, strict=True))
        and bounds[0] <= math.prod(sides) // math.prod(other) <= bounds[1]
    ]
    return fitting[draws.below(len(fitting))] if fitting else None


def _ranges(request: SizeRequest) -> tuple[tuple[int, int, int], ...]:
    """Return (fewest work-groups, most work-groups, number of wanted pairs) of each regime."""
    units, wanted = request.compute_units, request.num_wanted
    most = max(request.max_groups_per_unit * units - 1, 1)
    if not request.stratified:
        return ((1, most, wanted),)
    idle = min(int(request.idle_share * wanted + 0.5), wanted)
    under = min(int(request.under_share * wanted + 0.5), wanted - idle)
    full_from = UNDER_UTILISED_GROUPS_PER_UNIT * units
    idle_to = max(units - 1, 1)
    return (
        (1, idle_to, idle),
        (idle_to + 1, full_from - 1, under),
        (full_from, most, wanted - idle - under),
    )


def _most_groups_by_shape(request: SizeRequest) -> dict[Shape, int]:
    """Return how many work-groups of each shape fit; leave out the shapes that do not fit."""
    found: dict[Shape, int] = {}
    items = 0
    for shape in request.shapes:
        by_side = math.prod(request.max_side // side for side in shape)
        most = min(by_side, request.max_work_items // math.prod(shape))
        if request.fits is not None and most >= 1:
            # The number of work-items that fit is similar for all shapes: guess it from the last.
            most = _most_that_fit(request, shape, most, guess=items // math.prod(shape))
            items = most * math.prod(shape)
        if most >= 1:
            found[shape] = most
    return found


def _most_that_fit(request: SizeRequest, shape: Shape, most: int, *, guess: int) -> int:
    """Return how many work-groups fit in a nearly square arrangement; 0 if not even one fits."""

    def fits_memory(groups: int) -> bool:
        return _fits_memory(request, _sides(_near_square(shape, groups), shape), shape)

    if fits_memory(most):
        return most
    low, high = 0, most
    if 0 < guess < most:
        step = max(1, guess // 8)
        if fits_memory(guess):
            low = guess
            while low + step < high and fits_memory(low + step):
                low += step
                step *= 2
            high = min(high, low + step)
        else:
            high = guess
            while high - step > low and not fits_memory(high - step):
                high -= step
                step *= 2
            low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits_memory(middle) else (low, middle)
    return low


def _fits_memory(request: SizeRequest, sides: Shape, shape: Shape) -> bool:
    return request.fits is None or request.fits(sides, shape)


def _near_square(shape: Shape, target: int) -> Shape:
    """Return at most ``target`` work-groups, with about equal sides; monotone in ``target``."""
    if len(shape) == 1:
        return (target,)
    side = (target * math.prod(shape)) ** (1 / len(shape))
    return tuple(max(1, int(side / length)) for length in shape)


def _sides(groups: Shape, shape: Shape) -> Shape:
    return tuple(n * side for n, side in zip(groups, shape, strict=True))


def _arranged(
    request: SizeRequest, draws: Draws, shape: Shape, target: int, bounds: tuple[int, int]
) -> Shape:
    """Return a shape of about ``target`` work-groups, with sides within MAX_ASPECT if possible."""
    if len(shape) == 1:
        return (target,)
    side = (target * math.prod(shape)) ** (1 / len(shape))
    best: Shape = ()
    best_aspect = math.inf
    for _ in range(_ARRANGEMENTS_TRIED):
        ratios = [2 ** (2 * draws.unit() - 1) for _ in shape[1:]]
        groups = _rounded(request, shape, target, [side * ratio for ratio in ratios])
        if not bounds[0] <= math.prod(groups) <= bounds[1]:
            continue
        aspect = _aspect(groups, shape)
        if aspect <= MAX_ASPECT:
            return groups
        if aspect < best_aspect:
            best, best_aspect = groups, aspect
    exact = _squarest(request, shape, target)
    if exact and (not best or _aspect(exact, shape) < best_aspect):
        return exact
    return best or (1,) * len(shape)


def _rounded(request: SizeRequest, shape: Shape, target: int, sides: list[float]) -> Shape:
    groups: list[int] = []
    left = float(target)
    for length, wanted in zip(shape, [*sides, 0.0], strict=True):
        is_last = len(groups) == len(sides)
        number = round(left if is_last else wanted / length)
        groups.append(max(1, min(number, request.max_side // length)))
        left /= groups[-1]
    return tuple(groups)


def _squarest(request: SizeRequest, shape: Shape, target: int) -> Shape:
    """Return ``target`` factorised into work-groups per dimension, with the smallest aspect."""
    most = [request.max_side // side for side in shape]
    options = [
        groups
        for groups in _factorisations(target, len(shape))
        if all(n <= limit for n, limit in zip(groups, most, strict=True))
    ]
    return min(options, key=lambda groups: (_aspect(groups, shape), groups), default=())


def _factorisations(number: int, parts: int) -> list[Shape]:
    if parts == 1:
        return [(number,)]
    divisors = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    divisors += [number // one for one in divisors if one * one != number]
    return [(one, *rest) for one in divisors for rest in _factorisations(number // one, parts - 1)]


def _aspect(groups: Shape, shape: Shape) -> float:
    sides = [n * side for n, side in zip(groups, shape, strict=True)]
    return max(sides) / min(sides)
