"""Choice of the cases that run in ``make test``, at each change (slow), or only at night.

The sample is always the same, so that the same cases run before and after a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)
SLOW = (pytest.mark.slow,)


def at_night_unless(is_sampled: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters of slow tests; cases not sampled are marked ``nightly``.

    Args:
        is_sampled: whether a case runs at each change.
        cases: values, or tuples if a test has several parameters.
    """
    return [_parameters(case, is_sampled(case)) for case in cases]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases as parameters of slow tests; the first and each ``step``-th are sampled."""
    return [_parameters(case, number % step == 0) for number, case in enumerate(cases)]


def slow_but_each(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases as parameters: the first and each ``step``-th are fast tests, the others slow."""
    return [
        pytest.param(*_values(case), marks=SLOW if number % step else ())
        for number, case in enumerate(cases)
    ]


def _parameters(case: Any, is_sampled: bool) -> Any:
    return pytest.param(*_values(case), marks=SLOW if is_sampled else NIGHTLY)


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


SHARES = [
    pytest.param("a fourth", marks=SLOW),
    pytest.param("the rest", marks=NIGHTLY),
]
"""Shares of a count that only the running test knows; see ``numbers_of``."""


def numbers_of(share: str, count: int) -> list[int]:
    """Return the numbers from 1 to ``count`` that belong to a share.

    >>> numbers_of("a fourth", 10), numbers_of("the rest", 10)
    ([2, 6, 10], [1, 3, 4, 5, 7, 8, 9])
    """
    return [number for number in range(1, count + 1) if (number % 4 == 2) == (share == "a fourth")]
