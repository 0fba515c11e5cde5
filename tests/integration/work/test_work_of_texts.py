"""Work that depends on how a kernel's text is written, by virtual launches and by hand."""

from __future__ import annotations

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.work.counting import CountedLaunch, count_launches
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

NUM_ITEMS = 64
FLOAT_BYTES = 4
HEAD = "__kernel void k(__global float *a, __global float *o, int n) { int g = get_global_id(0), j = 0; "
WITH_BARRIER = "__local float t[64]; t[get_local_id(0)] = a[g]; barrier(1); "
ENDINGS = {
    "a loop": (HEAD + "for (; j < 3; ++j) o[j * 64 + g] = 1;}", 3),
    "a loop and a blank": (HEAD + "for (; j < 3; ++j) o[j * 64 + g] = 1; }", 3),
    "a while loop": (HEAD + "while (j < 3) o[j++ * 64 + g] = 1;}", 3),
    "nested loops": (HEAD + "for (; j < 3; ++j) for (int i = 0; i < 2; ++i) o[(j * 2 + i) * 64 + g] = 1;}", 6),
    "an if": (HEAD + "if (g >= 0) o[g] = 1;}", 1),
    "a loop in an else": (HEAD + "if (g < 0) o[g] = 1; else for (; j < 3; ++j) o[j * 64 + g] = 1;}", 3),
    "a loop behind a barrier": (HEAD + WITH_BARRIER + "for (; j < 3; ++j) o[j * 64 + g] = t[j];}", 3),
    "a loop from a macro": (
        f"#define ALL(x) for (; j < 3; ++j) x;\n{HEAD}ALL(o[j * 64 + g] = 1)}}",
        3,
    ),
    "a kernel from a macro": (
        f"#define KERNEL(x) {HEAD} for (; j < 3; ++j) \\\n o[j * 64 + g] = x;}}\nKERNEL(1)",
        3,
    ),
    "a loop of a function": (
        "void f(__global float *o) { int from = 0, *p = &from; for (int j = 0; j < 3; ++j) o[*p + j * 64] = 1;}"
        f"{HEAD} f(o + g); }}",
        3,
    ),
}  # fmt: skip
"""By what ends at the closing brace: a kernel, and the stores of each work-item."""


def counted(device: OpenclVirtualDevice, source: str) -> tuple[CountedLaunch, Work]:
    kernel = kernel_of(source)
    (one,) = count_launches(kernel, configs_of(kernel, NUM_ITEMS), device)
    assert isinstance(one.outcome, Work), one.outcome
    assert one.outcome.is_exact
    return one, one.outcome


@pytest.mark.parametrize("name", ENDINGS)
def test_what_ends_at_a_closing_brace_runs_completely(
    virtual_device: OpenclVirtualDevice, name: str
) -> None:
    source, stores = ENDINGS[name]
    launch, work = counted(virtual_device, source)
    assert work.global_stores == stores * NUM_ITEMS
    assert work.active_items == NUM_ITEMS
    (end_bytes,) = (one.end_bytes for one in launch.ranges if one.position == 1)
    assert end_bytes == stores * NUM_ITEMS * FLOAT_BYTES


LETTERS = ["{", "}", "(", ")", "[", "]", ";", r"\'", r"\\"]


@pytest.mark.parametrize("letter", LETTERS)
def test_a_literal_in_the_header_of_a_loop_is_no_bracket(
    virtual_device: OpenclVirtualDevice, letter: str
) -> None:
    source = (
        "__kernel void k(__global const int *a, __global int *o, int n) { int g = get_global_id(0), i;"
        f" for (i = 0; i < 4 && a[i] != '{letter}'; i += a[9] != '{letter}') {{}} o[g] = i; }}"
    )
    _, work = counted(virtual_device, source)
    assert work.global_loads == (4 + 4) * NUM_ITEMS
    # ``i < 4`` five times; ``&&``'s operand, the step's comparison and the step four times
    assert work.int_ops == (5 + 4 + 4 + 4) * NUM_ITEMS


def test_a_comment_in_the_header_of_a_loop_is_no_bracket(
    virtual_device: OpenclVirtualDevice,
) -> None:
    source = HEAD + "for (j = 0 /* ({; */; j < 3 /* ; */; j += 1) o[j * 64 + g] = a[j]; }"
    _, work = counted(virtual_device, source)
    # ``j < 3`` four times, the step three times, ``j * 64 + g`` three times
    assert (work.global_stores, work.int_ops) == (3 * NUM_ITEMS, (4 + 3 + 6) * NUM_ITEMS)


@pytest.mark.parametrize(
    "statement",
    [
        "float t[8]; for (; j < 8; ++j) t[j] = 0; o[g] = t[n > 5 ? g & 7 : n + 1];",
        "o[g] = 0; j = 100; j /= n > 5 ? g - g : n - 2;",
        'o[g] = 0; printf("%d", n > 5 ? g : n + 1);',
        "o[g] = 0; if (n < 5) ((__global float4 *)o)[g] = (float4)(a[g]);",
        "o[g] = 0; float4 v; for (; j < 3; ++j) v = (float4)(o[g]);",
    ],
)
def test_counters_nest_with_the_code_that_ends_at_the_same_place(
    virtual_device: OpenclVirtualDevice, statement: str
) -> None:
    _, work = counted(virtual_device, f"{HEAD}{statement} }}")
    assert work.global_stores == NUM_ITEMS


POINTED = "__kernel void k(__global float *a, __global {kind} *o, int n) {{ int g = get_global_id(0); {body} }}"
RESULTS = {
    "fract": ("float", "a[g] = fract(a[g], &o[g]);", 4, 1, 4),
    "fract of a vector": ("float4", "a[g] = fract((float4)(a[g]), o + g).x;", 16, 1, 16),
    "fract of a wide vector": ("float8", "a[g] = fract((float8)(a[g]), o + g).s0;", 32, 2, 64),
    "sincos": ("float", "a[g] = sincos(a[g], o + g);", 4, 1, 4),
    "modf": ("float", "a[g] = modf(a[g], &o[g]);", 4, 1, 4),
    "frexp": ("int", "a[g] = frexp(a[g], &o[g]);", 4, 1, 4),
    "remquo": ("int", "a[g] = remquo(a[g], 3.0f, &o[g]);", 4, 1, 4),
    "lgamma_r": ("int", "a[g] = lgamma_r(a[g], &o[g]);", 4, 1, 4),
    "one of two places": ("float", "a[g] = fract(a[g], n > 5 ? o + g : o + 2 * g);", 4, 1, 4),
}
"""By the function that stores: the stored type, a body, its bytes and requests for each
work-item, and its sectors for each warp. Each of two requests of a float8 touches all sectors."""


@pytest.mark.parametrize("name", RESULTS)
def test_results_behind_pointers_are_stores(virtual_device: OpenclVirtualDevice, name: str) -> None:
    kind, body, size, requests, sectors = RESULTS[name]
    _, work = counted(virtual_device, POINTED.format(kind=kind, body=body))
    assert work.global_stores == (1 + requests) * NUM_ITEMS
    assert work.global_store_bytes == (FLOAT_BYTES + size) * NUM_ITEMS
    assert work.global_store_requests == (1 + requests) * NUM_ITEMS / 32
    assert work.global_store_sectors == (FLOAT_BYTES + sectors) * NUM_ITEMS / 32
    assert work.active_items == NUM_ITEMS


def test_a_work_item_is_active_if_only_a_function_stores(
    virtual_device: OpenclVirtualDevice,
) -> None:
    _, work = counted(virtual_device, HEAD + "if (g < 32) fract(a[g], &o[g]); }")
    assert (work.active_items, work.global_stores) == (32, 32)


@pytest.mark.parametrize(
    ("body", "loads", "stores"),
    [
        ("__local float s; fract(a[g], &s);", 0, 1),
        ("__local float s[64]; fract(a[g], s + g);", 0, 1),
        ("float s; o[g] = fract(a[g], &s) + s;", 0, 0),
        ("__local int s; s = 3; int x = s + s; o[g] = x;", 2, 1),
        ("__local int s; s = 1; if (s) j = n && s ? s : 0; o[g] = j;", 3, 1),
    ],
)
def test_accesses_to_local_variables(
    virtual_device: OpenclVirtualDevice, body: str, loads: int, stores: int
) -> None:
    _, work = counted(virtual_device, HEAD + body + " }")
    assert (work.local_loads, work.local_stores) == (loads * NUM_ITEMS, stores * NUM_ITEMS)
