"""Numbers of JSON that others wrote: real, finite and in their range."""

from __future__ import annotations

import math

import pytest

from llmperf_common.files.json_numbers import number, number_rows, numbers, share, whole

NO_NUMBERS = [None, "1", "nan", True, [1], {}, math.nan, math.inf, -math.inf, 10**400, -1, 5.5]


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number_of_the_range(value: object) -> None:
    with pytest.raises(ValueError, match=r"far is .*, not a number from 0 to 5$"):
        number(value, "far", least=0, most=5)
    with pytest.raises(ValueError, match=r"far\[1\] is .*, not a number from 0 to 5"):
        numbers([1, value], "far", least=0, most=5)
    with pytest.raises(ValueError, match=r"far\[3\] is .*, not a number from 0 to 5"):
        number_rows([[1, 2], [3, value]], 2, "far", least=0, most=5)
    with pytest.raises(ValueError, match="not a whole number"):
        whole(value, "far", least=0, most=5)


def test_numbers() -> None:
    assert number(5, "x", least=0, most=5) == 5.0
    assert whole(5, "x", least=0, most=5) == 5
    assert share(0.9, "x") == 0.9
    assert numbers([], "x", least=0, most=5).shape == (0,)
    assert numbers([1, 2.5], "x", least=0, most=5).tolist() == [1.0, 2.5]
    assert number_rows([], 3, "x", least=0, most=5).shape == (0, 3)
    assert number_rows([[1], [2]], 1, "x", least=0, most=5).tolist() == [[1.0], [2.0]]
    assert number_rows([[], []], 0, "x", least=0, most=5).shape == (2, 0)
    with pytest.raises(ValueError, match="whole"):
        whole(2.0, "x", least=0, most=5)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, "nan", None])
def test_shares_that_are_none(value: object) -> None:
    with pytest.raises(ValueError, match="x is"):
        share(value, "x")


@pytest.mark.parametrize("rows", [None, "ab", 5, [1, 2], [[1], [1, 2]], {"a": [1, 2]}])
def test_rows_that_are_none(rows: object) -> None:
    with pytest.raises(ValueError, match=r"x (is not a list|has a list)"):
        number_rows(rows, 2, "x", least=0, most=5)
