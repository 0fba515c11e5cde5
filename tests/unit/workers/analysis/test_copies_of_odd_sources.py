"""Copies of kernels that are unusual, not wrong: very deep expressions, names that are not ASCII."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from workers.analysis.copy.instrument import instrument
from workers.work.counted_copy import counted_copy

PARAMETERS = "__global float *a, __global const float *b"
ACCESS = re.compile(r"lp_touch\(lp_c, \d+, \(ulong\)&\([ab]\[")
Copy = Callable[[str, str], str]


def instrumented(source: str, name: str) -> str:
    return instrument(source, name).source


def counted(source: str, name: str) -> str:
    return counted_copy(source, name).source


def sum_of(num_terms: int) -> str:
    terms = " + ".join(f"b[i + {number}]" for number in range(num_terms))
    return f"__kernel void k({PARAMETERS}) {{ int i = get_global_id(0); a[i] = {terms}; }}"


@pytest.mark.parametrize("copy", [instrumented, pytest.param(counted, marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_terms", [pytest.param(330, marks=pytest.mark.slow), 700])
def test_every_access_of_a_long_sum_is_wrapped(copy: Copy, num_terms: int) -> None:
    """An unrolled loop; as a tree it is as deep as it is long, and Python's recursion error is lost in libclang's callback."""
    before = sys.getrecursionlimit()
    assert len(ACCESS.findall(copy(sum_of(num_terms), "k"))) == num_terms + 1
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("copy", [instrumented, counted])
@pytest.mark.parametrize("name", ["caf\u00e9", "\u0430\u0431"])
def test_a_name_that_is_not_ascii(copy: Copy, name: str) -> None:
    source = f"__kernel void {name}(__global int *\u0430) {{ \u0430[get_global_id(0)] = 1; }}"
    text = copy(source, name)
    assert name not in text
    assert "\u0430[" in text
