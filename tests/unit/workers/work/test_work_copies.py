"""The counted copy of a kernel: which blocks it has, and what one execution of each does."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from workers.analysis.copy.rewriter import UnresolvedError
from workers.work.counted_copy import CountedCopy, counted_copy


def copy_of(body: str, arguments: str = "__global float *a, int n") -> CountedCopy:
    return counted_copy(f"__kernel void k({arguments}) {{ int i = get_global_id(0); {body} }}", "k")


def tally_of(body: str, arguments: str = "__global float *a, int n") -> Counter[str]:
    """Add up what every block does once, without what is 0."""
    total: Counter[str] = Counter()
    for block in copy_of(body, arguments).blocks:
        total.update(block.tally)
    return +total


def floats(tally: Counter[str]) -> dict[str, int]:
    return {name: tally[name] for name in ("fp32_ops", "special_ops", "fp64_ops") if tally[name]}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a[i] * 2.0f + 1.0f", {"fp32_ops": 2}),
        ("a[i] / 3.0f", {"fp32_ops": 1, "special_ops": 1}),
        ("fma(a[i], 2.0f, 1.0f)", {"fp32_ops": 2}),
        ("-a[i]", {}),
        ("1.0f / 16777216.0f", {}),
        ("a[i] / 1.0f", {}),
        ("a[i] * (1.0f)", {}),
        ("1.0f / a[i]", {"fp32_ops": 1, "special_ops": 1}),
        ("a[i] / 1.5f", {"fp32_ops": 1, "special_ops": 1}),
        ("native_exp(a[i]) + sqrt(a[i])", {"fp32_ops": 1, "special_ops": 2}),
        ("dot((float4)(a[i]), (float4)(1.0f))", {"fp32_ops": 7}),
        ("a[i] < 1.0f ? 1.0f : 2.0f", {}),
        ("!a[i]", {}),
    ],
)
def test_operations_of_expressions(expression: str, expected: dict[str, int]) -> None:
    assert floats(tally_of(f"a[i] = {expression};")) == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("i += a[0];", {"fp32_ops": 1}),
        ("i /= a[0];", {"fp32_ops": 1, "special_ops": 1}),
        ("char c = 1; c *= a[0];", {"fp32_ops": 1}),
        ("a[0] += n;", {"fp32_ops": 1}),
        ("a[0] += 0.1;", {"fp64_ops": 1}),
        ("float4 v = 1; v += a[0];", {"fp32_ops": 4}),
        ("i += n;", {"int_ops": 1}),
        ("i <<= n;", {"int_ops": 1}),
        ("a += n;", {}),
    ],
)
def test_a_compound_assignment_counts_in_the_type_in_which_it_computes(
    statement: str, expected: dict[str, int]
) -> None:
    tally = tally_of(statement)
    assert {name: n for name, n in tally.items() if name.endswith("_ops")} == expected


@pytest.mark.parametrize(
    ("expression", "int_ops"),
    [("!n", 1), ("~n", 1), ("-n", 1), ("+n", 0), ("!a[i]", 1), ("!(n && i)", 1), ("!v", 4)],
)
def test_operators_of_one_operand(expression: str, int_ops: int) -> None:
    kind = "int4" if expression == "!v" else "int"
    assert tally_of(f"int4 v = n; {kind} x = {expression};")["int_ops"] == int_ops


LOCAL = "__local int s; __local float4 v; __local int t[8]; __local pair r; __local int *p = &s;"
NAMED = [
    ("n = s;", 1, 0, 4),
    ("n = s + s;", 2, 0, 8),
    ("s = 3;", 0, 1, 4),
    ("(s) = 3;", 0, 1, 4),
    ("s += 3;", 1, 1, 8),
    ("s++;", 1, 1, 8),
    ("--s;", 1, 1, 8),
    ("p = &s;", 0, 0, 0),
    ("p = t;", 0, 0, 0),
    ("*p = 1;", 0, 1, 4),
    ("n = t[s];", 2, 0, 8),
    ("v = (float4)(1.0f);", 0, 1, 16),
    ("v.x = 1.0f;", 0, 1, 16),
    ("a[0] = v.y;", 1, 0, 16),
    ("r.one = 1;", 0, 1, 4),
    ("pair q = r;", 2, 0, 8),
    ("n = n && s;", 1, 0, 4),
    ("n = i ? s : 0;", 1, 0, 4),
    ("while (s) n = 1;", 1, 0, 4),
    ("n = sizeof(s);", 0, 0, 0),
    ("barrier(s);", 1, 0, 4),
]
"""Statements, with the loads and stores of local memory by one execution, and their bytes."""


@pytest.mark.parametrize(("statement", "loads", "stores", "num_bytes"), NAMED)
def test_a_variable_in_local_memory_is_accessed_by_its_name(
    statement: str, loads: int, stores: int, num_bytes: int
) -> None:
    head = "typedef struct { int one; float two; } pair; __kernel void k(__global float *a, int n)"
    source = f"{head} {{ int i = get_global_id(0); {LOCAL} {statement} }}"
    tally: Counter[str] = Counter()
    for block in counted_copy(source, "k").blocks:
        tally.update(block.tally)
    assert (tally["local_loads"], tally["local_stores"]) == (loads, stores)
    assert tally["local_load_bytes"] + tally["local_store_bytes"] == num_bytes


@pytest.mark.parametrize(
    ("operand", "num_blocks"),
    [("n", 1), ("1", 1), ("s", 2), ("p->x", 2), ("a[i]", 2), ("n + 1", 2)],
)
def test_an_operand_that_does_nothing_has_no_counter(operand: str, num_blocks: int) -> None:
    body = f"__local int s; __global float4 *p = (__global float4 *)a; i = n ? {operand} : 0;"
    assert len(copy_of(body).blocks) == num_blocks


def test_an_assignment_that_divides_by_1_is_an_access_and_no_operation() -> None:
    tally = tally_of("a[i] /= 1.0f;")
    assert floats(tally) == {}
    assert (tally["global_loads"], tally["global_stores"]) == (1, 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a[i] = a[i + 1];", {"global_loads": 1, "global_load_bytes": 4, "global_stores": 1, "global_store_bytes": 4}),
        ("a[i] += 1.0f;", {"global_loads": 1, "global_load_bytes": 4, "global_stores": 1, "global_store_bytes": 4}),
        ("__global float *p = a + i; p++; *p = 1.0f;", {"global_stores": 1, "global_store_bytes": 4}),
        ("vstore4(vload4(i, a), i, a);", {"global_loads": 1, "global_load_bytes": 16, "global_stores": 1, "global_store_bytes": 16}),
        ("float x = 1.0f; x += 2.0f; float *p = &x;", {}),
        ("__local float t[8]; t[i & 7] = a[i];", {"global_loads": 1, "global_load_bytes": 4, "local_stores": 1, "local_store_bytes": 4}),
        ("atomic_add((volatile __global int *)a + i, 1);", {"global_atomics": 1}),
    ],
)  # fmt: skip
def test_accesses_by_address_space(body: str, expected: dict[str, int]) -> None:
    tally = tally_of(body)
    assert {name: n for name, n in tally.items() if not name.endswith("_ops")} == expected


def test_a_structure_is_as_many_accesses_as_it_has_members() -> None:
    source = "typedef struct { float x, y; int n; } s; __kernel void k(__global s *a) { s one = a[0]; a[1] = one; }"
    (block,) = counted_copy(source, "k").blocks
    assert block.tally["global_loads"] == block.tally["global_stores"] == 3
    assert block.tally["global_load_bytes"] == 12


@pytest.mark.parametrize(
    ("body", "num_blocks"),
    [
        ("a[i] = 1.0f;", 1),
        ("if (i < n) a[i] = 1.0f; a[0] = 2.0f;", 2),
        ("if (i >= n) return; a[i] = 1.0f;", 3),
        ("if (i < n && a[i] > 0.0f) a[i] = 1.0f;", 3),
        ("a[i] = i < n ? a[i + 1] : 0.0f;", 2),
        ("for (int j = 0; j < n; ++j) a[j] = 1.0f;", 3),
        ("for (int j = 0; j < n; ++j) { if (a[j] > 1.0f) break; a[j] = 1.0f; }", 6),
        ("switch (n) { case 1: a[i] = 1.0f; break; default: a[i] = 2.0f; }", 3),
    ],
)
def test_what_may_not_run_is_a_block_of_its_own(body: str, num_blocks: int) -> None:
    assert len(copy_of(body).blocks) == num_blocks


@pytest.mark.parametrize(
    ("body", "is_in_turn"),
    [
        (
            "for (int j = 0; j < n; ++j) { switch (j & 1) { case 1: continue; } a[j] = 1.0f; }",
            False,
        ),
        ("for (int j = 0; j < n; ++j) { if (j & 1) continue; a[j] = 1.0f; }", False),
        ("for (int j = 0; j < n; ++j) { switch (j & 1) { case 1: break; } a[j] = 1.0f; }", True),
        (
            "for (int j = 0; j < n; ++j) { for (int m = 0; m < n; ++m) { if (m > j) break; } "
            "a[j] = 1.0f; }",
            True,
        ),
    ],
)
def test_code_behind_a_jump_out_of_its_loop_is_a_block_of_its_own(
    body: str, is_in_turn: bool
) -> None:
    (block,) = [one for one in copy_of(body).blocks if one.tally.get("global_stores")]
    assert block.is_turn is is_in_turn


def test_loops_know_their_turns_and_parts_of_for_may_be_missing() -> None:
    copy = copy_of("int j = 0; for (;;) { if (j++ > n) break; a[j] = 1.0f; }")
    assert sum(block.is_turn for block in copy.blocks) == 1
    copy = copy_of("for (int j = 0; ; j += 2) { if (j > n) return; a[j] = (float)(j * 3); }")
    assert "j += 2)" in copy.source


def test_barriers_make_a_group_run_as_one_and_can_be_left_out() -> None:
    source = (
        "__kernel void k(__global int *a) { __local int t[64]; int l = get_local_id(0);"
        " t[l] = a[l]; barrier(CLK_LOCAL_MEM_FENCE); a[l] = t[63 - l]; }"
    )
    together, apart = counted_copy(source, "k"), counted_copy(source, "k", without_barriers=True)
    assert together.is_grouped
    assert not apart.is_grouped
    assert together.by_groups
    assert apart.by_groups
    assert together.blocks == apart.blocks
    assert together.blocks[0].tally["barriers"] == 1
    assert not copy_of("a[i] = 1.0f;").by_groups


def test_ids_are_those_of_the_virtual_launch() -> None:
    source = copy_of("a[get_group_id(0) * get_num_groups(0)] = get_work_dim();").source
    body = source[source.index("__kernel") :]
    assert "lp_get_group_id(lp_c, 0)" in body
    assert "lp_get_work_dim(lp_c)" in body
    assert " get_global_id(" not in body


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "int s = ({ int t = 0; for (int j = 0; j < 9; j++) t += a[j]; t; });",
            "a statement in an",
        ),
        ("int s = n ?: a[i];", "an operator ?: without its second operand"),
        (
            "switch (n & 1) { case 0: do { a[i]++; case 1: a[i]++; } while (--n > 0); }",
            "a jump into",
        ),
        ("goto in; for (; n > 0; n--) { in: a[i]++; }", "a jump into a loop"),
    ],
)
def test_what_the_counters_of_blocks_cannot_follow_is_refused(statement: str, why: str) -> None:
    source = f"__kernel void k(__global int *a, int n) {{ int i = get_global_id(0); {statement} }}"
    with pytest.raises(UnresolvedError, match=f"line 1: {re.escape(why)}"):
        counted_copy(source, "k")


def test_what_a_virtual_launch_cannot_tell_is_refused_with_its_line() -> None:
    with pytest.raises(UnresolvedError, match=r"line 2: get_sub_group_id"):
        counted_copy(
            "uint get_sub_group_id(void);\n__kernel void k(__global uint *a) { a[0] = get_sub_group_id(); }",
            "k",
        )


@pytest.mark.parametrize("condition", ["__OPENCL_VERSION__ >= 300", "defined(_OPENCL_H_)"])
def test_code_that_a_devices_compiler_chooses_is_not_counted(condition: str) -> None:
    source = (
        f"__kernel void k(__global float *a) {{\n#if {condition}\n*a += 1;\n#endif\n*a += 1; }}"
    )
    with pytest.raises(UnresolvedError, match="macros of the device"):
        counted_copy(source, "k")
