"""Near duplicates and the family ids."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common import families
from llmperf_common.families import MIN_JACCARD, assign_families
from llmperf_common.shingles import jaccard, views_of
from llmperf_common.tokens import normalize, tokenize

SAXPY = """
__kernel void saxpy(float a, __global const float *x, __global float *y, int n) {
    int i = get_global_id(0);   // one work-item an element
    if (i < n) { y[i] = a * x[i] + y[i] * 0.5f; }
}
"""
RENAMED = """
/* copied */ __kernel void scale_add(float k, __global const float* in, __global float* out, int count)
{ int gid = get_global_id(0); if (gid < count) { out[gid] = k * in[gid] + out[gid] * 2.5f; } }
"""
OTHER = """
__kernel void histogram(__global const int *keys, __global int *bins) {
    for (int k = 0; k < 8; ++k) atomic_inc(&bins[keys[get_local_id(0) + k] & 15]);
}
"""


def test_tokens_leave_out_comments_and_white_space():
    assert tokenize("a/**/b // c\n<<= 1e-3f \"//x\" '\\'' ## ...") == [
        "a", "b", "<<=", "1e-3f", '"//x"', "'\\''", "##", "...",
    ]  # fmt: skip
    assert tokenize("#define A \\\n 1") == ["#", "define", "A", "1"]
    assert tokenize("/* never closed") == []


def test_normal_form_keeps_keywords_builtins_and_number_classes():
    assert normalize("float4 v = convert_float4(x) * 0x1F + 2.5f + 0 + 1 + 1e3;") == [
        "float4", "v0", "=", "convert_float4", "(", "v1", ")", "*", "int", "+", "float", "+", "0", "+", "1", "+",
        "float", ";",
    ]  # fmt: skip


def test_a_renamed_copy_is_family_and_another_kernel_is_not():
    found = assign_families([("b", SAXPY, "x"), ("a", RENAMED, "y"), ("c", OTHER, "z")])
    assert found == {"b": "a", "a": "a", "c": "c"}


def test_kernels_of_one_file_are_one_family_and_empty_sources_are_none():
    found = assign_families([("1", SAXPY, "x"), ("0", SAXPY, "y"), ("2", "", "p"), ("3", " ", "q")])
    assert found == {"0": "0", "1": "0", "2": "2", "3": "3"}


def test_a_line_put_in_or_a_helper_renamed_stays_in_the_family():
    lines = "".join(f"    y[i + {n}] = a * x[i + {n}] + y[i];\n" for n in range(2, 30))
    long = SAXPY.replace("if (i < n)", lines + "    if (i < n)")
    more = long.replace("int i =", "int unused_number; int i =")
    assert jaccard(views_of(long)[0], views_of(more)[0]) < MIN_JACCARD
    assert jaccard(views_of(long)[1], views_of(more)[1]) >= MIN_JACCARD
    assert assign_families([("a", long, "x"), ("b", more, "x")]) == {"a": "a", "b": "a"}


def test_sources_without_a_token_are_alike():
    assert assign_families([("a", "// one", "x"), ("b", "/* two */", "x")]) == {"a": "a", "b": "a"}


def variants(count: int) -> list[tuple[str, str, str]]:
    """Chains of edits: neighbours are near duplicates, ends are not; two unrelated stems."""
    kernels = []
    for stem, text in (("s", SAXPY), ("h", OTHER)):
        body = text
        for step in range(count):
            kernels.append((f"{stem}{step:03d}", body, "k"))
            body = body.replace("}", f"int extra_{step} = {step} % 7; }}", 1)
    return kernels


@given(st.randoms(use_true_random=False))
def test_families_do_not_depend_on_order(shuffler: random.Random):
    kernels = variants(6)
    expected = assign_families(kernels)
    shuffler.shuffle(kernels)
    assert assign_families(kernels) == expected


def test_every_family_id_is_its_smallest_member():
    found = assign_families(variants(12))
    for family in set(found.values()):
        assert min(kernel for kernel, one in found.items() if one == family) == family


def test_components_are_transitive():
    found = assign_families(variants(12))
    neighbours = variants(12)
    for (first, a, _), (second, b, _) in itertools.pairwise(neighbours):
        if any(jaccard(x, y) >= MIN_JACCARD for x, y in zip(views_of(a), views_of(b), strict=True)):
            assert found[first] == found[second]


def test_candidates_by_sketch_find_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch):
    kernels = variants(20)
    expected = assign_families(kernels)
    monkeypatch.setattr(families, "_MAX_ALL_PAIRS", 0)
    assert assign_families(kernels) == expected
