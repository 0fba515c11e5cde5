"""Kernels that ``#if`` holds shut, and those that a parse drops: each is opened on its own, or has a failure."""

from __future__ import annotations

import pytest

from llmperf_common.failures import FailureCode
from workers.source.clang.parse import diagnose
from workers.source.front_end import read_kernels
from workers.source.kernel_headers import kernel_headers
from workers.source.macro_inference import ParseBudget, infer_macros
from workers.source.preprocessor_guards import branches_by_line
from workers.source.read_kernel import ReadKernel


def kernels(source: str, build_options: str = "") -> dict[str, ReadKernel]:
    found = read_kernels(source, build_options)
    assert isinstance(found, tuple), found
    return {one.name: one for one in found}


def options(source: str, build_options: str = "") -> dict[str, str]:
    found = kernels(source, build_options)
    assert all(one.failure is None and one.signature for one in found.values()), found
    assert all(diagnose(one.source, one.build_options) == () for one in found.values())
    return {name: one.build_options for name, one in found.items()}


def define(name: str, body: str = "x[0] = 1;") -> str:
    return f"kernel void {name}(global int *x) {{ {body} }}\n"


def test_each_branch_is_opened_on_its_own():
    two = f"#ifdef K1\n{define('a')}#endif\n#ifdef K2\n{define('b')}#endif\n"
    assert options(two) == {"a": "-DK1", "b": "-DK2"}
    assert options(define("c") + two) == {"c": "", "a": "-DK1", "b": "-DK2"}
    together = f"#ifdef K1\n{define('a')}{define('b')}#endif\n"
    assert options(together) == {"a": "-DK1", "b": "-DK1"}
    values = f"#if DIM == 2\n{define('a')}#elif DIM == 3\n{define('b')}#else\n{define('c')}#endif\n"
    assert options(values) == {"c": "", "a": "-DDIM=2", "b": "-DDIM=3"}
    assert options(f"#ifndef N\nint n;\n#else\n{define('a')}#endif\n") == {"a": "-DN"}
    assert options(f"#ifdef A\n#ifdef B\n{define('a')}#endif\n#endif\n") == {"a": "-DA -DB"}


def test_what_is_missing_inside_is_defined_too():
    inside = "kernel void a(global REAL *x) { x[0] = SCALE; }"
    assert options(f"#ifdef GPU\n{inside}\n#endif\n") == {"a": "-DGPU -DREAL=float -DSCALE=16"}
    beside = define("b", "x[0] = N;")
    assert options(f"{beside}#ifdef GPU\n{inside}\n#endif\n") == {
        "b": "-DN=16",
        "a": "-DGPU -DREAL=float -DSCALE=16",
    }


def test_a_macro_for_one_kernel_does_not_take_another_away():
    source = (
        "#ifdef FAST\n#define REAL float\n#else\n" + define("slow") + "#endif\n"
        "kernel void k(global REAL *x) { x[0] = 1; }\n"
    )
    assert options(source) == {"k": "-DFAST", "slow": ""}


@pytest.mark.parametrize("condition", ["#if N > 3", "#ifdef __VENDOR__", "#if !defined(A) && A"])
def test_what_cannot_be_opened_has_a_failure(condition: str):
    found = kernels(f"{define('open')}{condition}\n{define('shut')}#endif\n")
    assert found["open"].failure is None
    failure = found["shut"].failure
    assert failure is not None
    assert failure.code is FailureCode.BUILD_ERROR
    assert "#if excludes this kernel" in failure.detail


def test_who_gives_the_options_has_chosen():
    source = f"#if DIM == 2\n{define('a')}#elif DIM == 3\n{define('b')}#endif\n"
    for given in ("-DDIM=3", "-D DIM=3"):
        found = kernels(source, given)
        assert found["b"].failure is None
        assert found["b"].build_options == given
        assert found["a"].failure is not None


@pytest.mark.parametrize(
    "source",
    [
        f"#if 0\n{define('b')}#endif\n",
        f"#if (0)\n{define('b')}#endif\n",
        f"/*\n#ifdef A\n*/\n/* {define('b')} */",
        f"#define MAKE(b) \\\n{define('b')}",
        "#ifndef H\n#define H\n#define NAME a\nkernel void NAME(global int *y);\n#endif\n",
        "#ifdef A\nkernel void b(global int *x);\n#endif\n",
    ],
)
def test_what_is_no_kernel_has_none(source: str):
    assert list(kernels(define("a") + source)) == ["a"]


def test_the_name_of_a_macro_is_no_lost_kernel():
    source = "#ifndef H\n#define NAME a\nkernel void NAME(global int *x) { x[0] = 1; }\n#endif\n"
    assert list(kernels(source)) == ["a"]


def test_headers_are_found_whatever_stands_around():
    source = (
        "__attribute__((reqd_work_group_size(8, 1, 1))) __kernel\nvoid\na(int x) {}\n"
        '#ifdef G\n__kernel __attribute__((vec_type_hint(float4))) void b(int (*f)(int), int y)\n{ "kernel void c() {" }\n'
        "#endif\nkernel void d(int x;\nkernel void e() { }"
    )
    assert [(one.name, len(one.branches)) for one in kernel_headers(source)] == [
        ("a", 0), ("b", 1), ("e", 0),
    ]  # fmt: skip


def test_a_directive_in_a_comment_is_none():
    source = "/*\n#ifdef A\n*/\n#define T int\n" + define("k", "x[0] = (U)1;")
    assert infer_macros(source) == ("-DU=float",)
    assert infer_macros(f"/*\n#ifdef A\n#define U int\n#endif\n*/\n{source}") == ("-DU=float",)
    assert branches_by_line("#ifdef A\n#endif")[0][0].opens == "A"


def test_the_search_ends_with_its_budget():
    names = [f"PARAM_{n}" for n in range(20)]
    source = define("k", f"x[0] = {' + '.join(names)};")
    assert len(infer_macros(source)) == 20
    budget = ParseBudget(3 * (len(source) + 4096))
    assert len(infer_macros(source, "", budget)) == 20
    assert not budget.allows(source)
    assert infer_macros(source, "", ParseBudget(0)) == ()
    assert infer_macros(source, "", ParseBudget(2 * (len(source) + 4096))) != ()
