"""Checks of numbers in JSON that others may have written.

Owns what counts as a number of an untrusted JSON document: a JSON number, finite and within the
range that the reader states. Texts such as ``"nan"`` and truth values are refused, although
``float`` and ``int`` convert them.
"""

from __future__ import annotations

import itertools
import math
import reprlib

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def number(value: object, what: str, *, least: float, most: float) -> float:
    """Return ``value`` as a float.

    Args:
        value: the value from the document.
        what: names the value in the message.
        least: smallest number that is accepted.
        most: largest number that is accepted.

    Raises:
        ValueError: The value is not a number, or lies out of the range.

    >>> number(3, "level", least=0, most=5)
    3.0
    """
    # A comparison with NaN is false, so NaN is refused.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(
            f"{what} is {reprlib.repr(value)}, not a number from {least:g} to {most:g}"
        )
    return float(value)


def share(value: object, what: str) -> float:
    """Return ``value``, a number above 0 and below 1.

    Raises:
        ValueError: The value is not such a number.
    """
    found = number(value, what, least=0, most=1)
    if found in (0.0, 1.0):
        raise ValueError(f"{what} is {found:g}, but must lie between 0 and 1")
    return found


def whole(value: object, what: str, *, least: int, most: int) -> int:
    """Return ``value`` as an int.

    Raises:
        ValueError: The value is not a whole number (``2.0`` is none), or lies out of the range.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(
            f"{what} is {reprlib.repr(value)}, not a whole number from {least} to {most}"
        )
    return value


def numbers(values: object, what: str, *, least: float, most: float) -> Floats:
    """Return a list of numbers as an array, shape (n,).

    Raises:
        ValueError: ``values`` is not a list, or one of its values is not a number of the range.
    """
    if not isinstance(values, list):
        raise ValueError(f"{what} is {reprlib.repr(values)}, not a list of numbers")
    # The types and the range are checked without a Python loop, because a list may be long.
    if set(map(type, values)) <= {int, float}:
        try:
            found = np.array(values, dtype=np.float64).reshape(len(values))
        except OverflowError:  # an integer above 2**1024
            found = np.full(len(values), math.nan)
        if np.all((found >= least) & (found <= most)):
            return found
    for place, value in enumerate(values):
        number(value, f"{what}[{place}]", least=least, most=most)
    raise ValueError(f"{what} has a value that is not a number from {least:g} to {most:g}")


def number_rows(rows: object, num_columns: int, what: str, *, least: float, most: float) -> Floats:
    """Return a list of n lists of numbers as an array, shape (n, num_columns).

    Raises:
        ValueError: ``rows`` is not a list of lists, a list does not have ``num_columns`` values, or
            one of them is not a number of the range.
    """
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError(f"{what} is not a list of lists of numbers")
    if not all(len(row) == num_columns for row in rows):
        raise ValueError(f"{what} has a list that does not have {num_columns} numbers")
    flat = list(itertools.chain.from_iterable(rows))
    return numbers(flat, what, least=least, most=most).reshape(len(rows), num_columns)
