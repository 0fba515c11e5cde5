"""Oclgrind confirms the side files of kernels/: buffers of that extent are enough, one element fewer is not.

Oclgrind knows neither our analysis nor the hands that wrote the side files. Slow: some hundred processes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.oracle.extents import Finding, Reach, check_kernel, of_side_file
from tests.oracle.oclgrind import PROGRAM, is_installed
from tests.support.truth.side_files import Launch, SideKernel, read_side_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not is_installed(),
        reason=f"{PROGRAM} is not installed: the extents of kernels/ stay unconfirmed (apt-get install oclgrind)",
    ),
]


def side_kernel(name: str) -> SideKernel:
    return next(one for one in read_side_files() if one.name == name)


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = threads.map(partial(check_kernel, num_launches=3, seed=1), read_side_files())
        return [one for some in found for one in some]


def test_no_extent_of_a_side_file_is_wrong(findings: list[Finding]) -> None:
    wrong = [one for one in findings if one.reach in (Reach.TOO_SMALL, Reach.TOO_LARGE)]
    assert wrong == []


def test_it_covers_at_least_thirty_kernels_and_nearly_every_pair(findings: list[Finding]) -> None:
    confirmed = [one for one in findings if one.reach is Reach.EXACT and one.num_shortened]
    assert len({one.kernel for one in confirmed}) >= 30
    claimed = [one for one in findings if one.reach is not Reach.NO_CLAIM]
    assert len(confirmed) >= 0.95 * len(claimed)


@pytest.mark.parametrize(("error", "reach"), [(1, Reach.TOO_LARGE), (-1, Reach.TOO_SMALL)])
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("vadd", "c"),
        ("reduce_sum", "scratch"),
        ("conv_rows", "taps"),
        ("cross_float3", "normal"),
        ("async_tile", "in"),
        ("row_col_extremes", "col_min"),
    ],
)
def test_one_element_too_many_or_too_few_is_noticed(
    name: str, argument: str, error: int, reach: Reach
) -> None:
    kernel = side_kernel(name)

    def off_by_one(kernel: SideKernel, position: int, launch: Launch) -> int | None:
        elements = of_side_file(kernel, position, launch)
        wrong = kernel.extents[position]["argument"] == argument
        return elements + error if wrong and elements is not None else elements

    found = {
        one.argument: one.reach for one in check_kernel(kernel, off_by_one, num_launches=1, seed=2)
    }
    assert found.pop(argument) is reach
    assert set(found.values()) == {Reach.EXACT}
