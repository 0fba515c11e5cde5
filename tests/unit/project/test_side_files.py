"""The comparison of an analysis with a side file tells exact, bound, missing and wrong apart."""

import pytest

from llmperf_common.analysis import Analysis, Extent, Polynomial, Term
from tests.support.truth.side_files import (
    KERNELS,
    RUN_RANGES,
    Pair,
    SideKernel,
    Verdict,
    compare,
    extent_elements,
    random_launches,
    read_side_file,
    read_side_files,
)

GLOBAL = Polynomial(constant=0, terms=(Term(factors=("global_size_0",), coefficient=1),))
ONLY_N = Polynomial(constant=0, terms=(Term(factors=("n",), coefficient=1),))


def side_kernel(name: str) -> SideKernel:
    return next(one for one in read_side_files() if one.name == name)


def judge(name: str, *extents: Extent) -> list[Pair]:
    kernel = side_kernel(name)
    launches = random_launches(kernel, count=200, seed=0)
    return compare(kernel, Analysis(extents=extents), launches)


def extent(position: int, form: Polynomial | None, **more: object) -> Extent:
    return Extent(position=position, form=form, **more)  # type: ignore[arg-type]


def test_equal_values_are_exact_however_they_are_written() -> None:
    doubled = Polynomial(
        constant=0,
        terms=(
            Term(factors=("n",), coefficient=3),
            Term(factors=("n",), coefficient=-2),
        ),
    )
    pairs = judge(
        "vadd",
        extent(0, GLOBAL, cap=ONLY_N, validated=True),
        extent(1, ONLY_N, cap=GLOBAL, validated=True),
        extent(2, doubled, cap=GLOBAL),
    )
    assert [one.verdict for one in pairs] == [Verdict.EXACT] * 3
    assert [one.validated for one in pairs] == [True, True, False]


def test_a_bound_is_wrong_only_where_it_is_called_validated() -> None:
    pairs = judge("vadd", extent(0, GLOBAL), extent(1, GLOBAL, validated=True))
    assert [one.verdict for one in pairs] == [Verdict.BOUND, Verdict.WRONG, Verdict.MISSING]
    assert "instead of" in pairs[1].detail


def test_an_extent_below_the_truth_is_wrong_even_unvalidated() -> None:
    one_less = Polynomial(constant=-1, terms=GLOBAL.terms)
    first = side_kernel("saxpy").extents[0]["position"]
    assert judge("saxpy", extent(first, one_less))[0].verdict is Verdict.WRONG


def test_nothing_may_be_called_validated_where_the_side_file_has_no_form() -> None:
    assert judge("bitonic_step", extent(0, ONLY_N, validated=True))[0].verdict is Verdict.WRONG
    assert judge("bitonic_step", extent(0, ONLY_N))[0].verdict is Verdict.NO_FORM
    assert judge("bitonic_step", extent(0, None))[0].verdict is Verdict.NO_FORM


def test_no_analysis_at_all_is_missing_everywhere() -> None:
    kernel = side_kernel("vadd")
    pairs = compare(kernel, None, random_launches(kernel, count=5, seed=0))
    assert {one.verdict for one in pairs} == {Verdict.MISSING}


@pytest.mark.parametrize("kernel", read_side_files(), ids=lambda kernel: kernel.name)
def test_random_launches_keep_the_contract_and_repeat(kernel: SideKernel) -> None:
    launches = list(random_launches(kernel, count=100, seed=3))
    assert launches == list(random_launches(kernel, count=100, seed=3))
    assert len(launches) == 100
    for launch in launches:
        assert kernel.accepts(launch.sizes)
        divided = zip(launch.global_size, launch.local_size, strict=True)
        assert all(items % lanes == 0 for items, lanes in divided)
        if kernel.required_local_size is not None:
            assert launch.local_size == kernel.required_local_size[: kernel.dims]


@pytest.mark.parametrize(
    "kernel",
    [one for one in read_side_files() if any("cap_terms" in e for e in one.extents)],
    ids=lambda kernel: kernel.name,
)
def test_random_launches_lie_on_both_sides_of_each_cap(kernel: SideKernel) -> None:
    for ranges in ({}, {"ranges": RUN_RANGES}):
        launches = list(random_launches(kernel, count=200, seed=0, **ranges))
        for one in kernel.extents:
            if "cap_terms" not in one:
                continue
            form = {key: one[key] for key in ("constant", "terms")}
            cap = {"constant": one["cap_constant"], "terms": one["cap_terms"]}
            sides = {
                extent_elements(form, at.sizes) > extent_elements(cap, at.sizes)  # type: ignore[operator]
                for at in launches
            }
            assert sides == {False, True}, one["argument"]


def test_a_side_file_is_read_with_the_source_beside_it() -> None:
    kernels = read_side_file(KERNELS / "histogram.toml")
    assert [one.name for one in kernels] == ["histogram_global", "histogram_local"]
    assert [p.name for p in kernels[0].parameters] == ["keys", "bins", "n"]
