"""Barriers inside conditions: where they are moved to, where they stay. No device."""

from __future__ import annotations

import pytest

from workers.analysis.copy.instrument import instrument
from workers.work.counted_copy import counted_copy

HEAD = "__kernel void k(__global float *a, __local float *t, int n) { uint l = get_local_id(0); "
STEP = "if (n >= {0}) {{ t[l] += t[l + {0}]; barrier(CLK_LOCAL_MEM_FENCE); }} "


def reduction(num_steps: int, *, before: str = "") -> str:
    """Return a kernel with ``num_steps`` barriers inside conditions."""
    steps = "".join(STEP.format(1 << step) for step in range(num_steps))
    return f"{HEAD}{before}{steps} a[get_group_id(0)] = t[0]; }}"


def test_many_barriers_are_moved_behind_their_conditions():
    made = instrument(reduction(10), "k")
    assert made.source.count("; } barrier(CLK_LOCAL_MEM_FENCE);") == 10
    assert not made.lacks_barriers


def test_few_barriers_stay_where_they_are():
    made = instrument(reduction(4), "k")
    assert "} barrier" not in made.source
    assert made.source.count("barrier(CLK_LOCAL_MEM_FENCE); }") == 4
    assert not made.lacks_barriers


@pytest.mark.parametrize(
    "before", ["if (n < 0) return; ", "if (n < 0) goto end; end: ; "], ids=["return", "goto"]
)
def test_they_stay_if_work_items_may_not_come_there(before):
    made = instrument(reduction(10, before=before), "k")
    assert "} barrier" not in made.source
    assert made.lacks_barriers


@pytest.mark.parametrize(
    "wrap",
    [
        "for (int i = 0; i < n; ++i) {{ {} }}",
        "if (n > 3) {{ {} }}",
        "switch (n) {{ case 1: {} }}",
    ],
    ids=["loop", "condition", "switch"],
)
def test_they_stay_in_code_that_not_all_work_items_may_reach(wrap):
    steps = "".join(STEP.format(1 << step) for step in range(10))
    made = instrument(HEAD + wrap.format(steps) + " a[0] = t[0]; }", "k")
    assert "} barrier" not in made.source
    assert made.lacks_barriers


def test_a_barrier_amid_a_conditional_block_stays_there():
    amid = "if (n) { t[l] = 1; barrier(1); a[l] = t[l + 1]; } " * 7
    made = instrument(f"{HEAD}{amid} }}", "k")
    assert "} barrier" not in made.source
    assert made.lacks_barriers


def test_barriers_of_both_branches_and_of_single_statements_are_moved():
    steps = "if (n > 1) { t[l] = 1; barrier(1); } else { t[l] = 2; barrier(2); } " * 3
    made = instrument(f"{HEAD}{steps} if (n) barrier(1); a[0] = t[0]; }}", "k")
    assert made.source.count(" barrier(1);") == 4
    assert made.source.count(" barrier(2);") == 3
    assert "barrier(2); }" not in made.source
    assert not made.lacks_barriers


def test_a_barrier_whose_argument_is_a_variable_stays():
    steps = STEP.replace("CLK_LOCAL_MEM_FENCE", "n").format(1) * 7
    assert instrument(f"{HEAD}{steps} }}", "k").lacks_barriers


def test_a_copy_without_barriers_says_so():
    steps = "for (int i = 0; i < 2; ++i) { if (n) { t[l] = 1; barrier(1); } } " * 7
    copy = counted_copy(f"{HEAD}{steps} a[0] = t[0]; }}", "k")
    assert copy.lacks_barriers
    assert not copy.is_grouped
    assert not counted_copy(reduction(10), "k").lacks_barriers
    assert counted_copy(reduction(10), "k").is_grouped
    assert not counted_copy(
        f"{HEAD}{steps} a[0] = t[0]; }}", "k", without_barriers=True
    ).lacks_barriers
