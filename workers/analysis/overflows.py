"""Find the local sizes at which a kernel indexes an array of fixed size beyond its end.

``__local float tile[16][16]`` fits one shape of work-group. A larger group has undefined behaviour,
so larger local sizes are neither probed nor planned. Owns the search; the caller launches. If a
local size overflows, all local sizes that are at least as large in every dimension count as
overflowing, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from workers.plan.ndranges import Shape, local_shapes, small_shapes

_LONGEST_SIDE = 1024
_STEP, _SMALL = 32, (1, 2, 4, 8, 16)

Overflows = Callable[[Sequence[Shape]], Sequence[bool]]
"""Returns, for each local size of a sequence, whether a launch indexes an array beyond its end."""


def overflowing_local_sizes(dims: int, max_items: int, overflows: Overflows) -> tuple[Shape, ...]:
    """Return the smallest local sizes at which an array overflows; larger ones overflow, too.

    The result is empty if no local size overflows. It is also empty if a work-group of a single
    work-item already overflows, because then the local size is not the cause.

    Args:
        dims: number of dimensions of the NDRange.
        max_items: largest number of work-items in a work-group.
        overflows: tries local sizes.

    >>> overflowing_local_sizes(1, 1024, lambda shapes: [shape[0] > 100 for shape in shapes])
    ((128,),)
    """
    if dims == 1:
        return _along_a_line(min(_LONGEST_SIDE, max_items), overflows)
    usual = local_shapes(dims, max_items, (_LONGEST_SIDE,) * dims, few=False)
    largest = [
        one for one in usual if not any(one != other and _within(one, other) for other in usual)
    ]
    found = _which(largest, overflows)
    if not found:
        return ()
    found += _which([one for one in usual if one not in largest], overflows)
    if len(found) == len(usual):
        small = small_shapes(dims)
        found += _which(small, overflows)
    single = (1,) * dims
    return () if single in found else _smallest(found)


def _along_a_line(most: int, overflows: Overflows) -> tuple[Shape, ...]:
    if not overflows([(most,)])[0] or overflows([(1,)])[0]:
        return ()
    # Plans use multiples of a step and, below the step, powers of two. No other sizes are tried.
    tried = [*(one for one in _SMALL if one < most), *range(_STEP, most, _STEP), most]
    low, high = 0, len(tried) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if overflows([(tried[middle],)])[0] else (middle, high)
    return ((tried[high],),)


def _which(shapes: Sequence[Shape], overflows: Overflows) -> list[Shape]:
    answers = overflows(shapes)
    return [shape for shape, answer in zip(shapes, answers, strict=True) if answer]


def _smallest(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    ordered = sorted(set(shapes))
    return tuple(
        one for one in ordered if not any(other != one and _within(other, one) for other in ordered)
    )


def _within(shape: Shape, other: Shape) -> bool:
    return all(side <= most for side, most in zip(shape, other, strict=True))
