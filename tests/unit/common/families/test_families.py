"""Near duplicates and the family ids."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.families import families
from llmperf_common.families.families import MIN_JACCARD, assign_families
from llmperf_common.families.shingles import Hashes, jaccard, views_of
from llmperf_common.families.tokens import tokenize

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


def test_a_renamed_copy_is_family_and_another_kernel_is_not():
    found = assign_families([("b", SAXPY, "x"), ("a", RENAMED, "y"), ("c", OTHER, "z")])
    assert found == {"b": "a", "a": "a", "c": "c"}


def test_kernels_of_one_text_are_one_family_and_empty_sources_are_none():
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


def overlap(first: str, second: str) -> float:
    return max(jaccard(x, y) for x, y in zip(views_of(first), views_of(second), strict=True))


def test_components_are_transitive():
    chain = variants(12)[1:12]
    texts = [text for _, text, _ in chain]
    assert all(overlap(one, after) >= MIN_JACCARD for one, after in itertools.pairwise(texts))
    assert overlap(texts[0], texts[-1]) < MIN_JACCARD
    assert set(assign_families(chain).values()) == {"s001"}


def test_candidates_by_sketch_find_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch):
    kernels = variants(20)
    expected = assign_families(kernels)
    monkeypatch.setattr(families, "_MAX_ALL_PAIRS", 0)
    assert assign_families(kernels) == expected


def pairs_of(overlap: float, count: int) -> list[Hashes]:
    """Sets of random hashes, two by two with just this overlap."""
    random_hashes = np.random.default_rng(5)
    num_common = int(np.ceil(2 * 200 * overlap / (1 + overlap)))
    sets = []
    for _ in range(count):
        base = random_hashes.integers(0, 2**63, size=400 - num_common, dtype=np.uint64)
        sets += [np.sort(base[:200]), np.sort(np.r_[base[:num_common], base[200:]])]
    return sets


def test_candidates_miss_hardly_a_pair_just_above_the_threshold():
    sets = pairs_of(0.86, 250)
    assert jaccard(sets[0], sets[1]) == pytest.approx(0.86, abs=0.005)
    found = set(families._sketched_pairs(sets))
    assert sum((2 * pair, 2 * pair + 1) in found for pair in range(250)) >= 249
    assert len(found) <= 255


def test_a_large_family_is_not_compared_pair_by_pair(monkeypatch: pytest.MonkeyPatch):
    body = "".join(f"y[i + {n}] = a * x[i * {n}] + y[{n}];\n" for n in range(40))
    calls = ["sin", "cos", "tan", "exp", "log", "sqrt", "fabs", "floor", "ceil", "rint"]
    kernels = [
        (
            f"{3 * number:04d}",
            SAXPY.replace("if (i < n)", f"{body} {first}({second}(n)); if (i < n)"),
            "k",
        )
        for number, (first, second) in enumerate(itertools.product(calls, calls))
    ]
    compared = []

    def counted(first: Hashes, second: Hashes) -> float:
        compared.append(1)
        return jaccard(first, second)

    monkeypatch.setattr(families, "jaccard", counted)
    assert set(assign_families(kernels).values()) == {"0000"}
    assert len(compared) < 3 * len(kernels)


def test_a_long_source_is_sketched_in_parts(monkeypatch: pytest.MonkeyPatch):
    kernels = variants(20)
    monkeypatch.setattr(families, "_MAX_ALL_PAIRS", 0)
    expected = assign_families(kernels)
    monkeypatch.setattr(families, "_SHINGLES_AT_ONCE", 7)
    assert assign_families(kernels) == expected
