"""The largest values that contents may have: solved for linear forms, as a search would find them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.analysis import (
    VALUE_LIMIT,
    Analysis,
    ContentsRule,
    Extent,
    IndexRole,
    IndexTarget,
    Polynomial,
    Term,
    launch_sizes,
)
from llmperf_common.records import Access, Argument, ArgumentKind, Signature
from workers.plan.strategies.buffers import AnalysedBuffers

MOST = 2**31
"""Beyond the largest ``int``, which the indices are."""
NAMES = (VALUE_LIMIT, "global_size_0", "local_size_0", "missing")


def forms(names: tuple[str, ...], least: int = 0) -> st.SearchStrategy[Polynomial]:
    terms = st.builds(
        lambda factors, coefficient: Term(factors=tuple(factors), coefficient=coefficient),
        st.lists(st.sampled_from(names), min_size=1, max_size=3),
        st.integers(least, 40),
    )
    return st.builds(
        lambda constant, some: Polynomial(constant=constant, terms=tuple(some)),
        st.integers(-50, 50),
        st.lists(terms, max_size=3),
    )


@given(forms(NAMES[:3], least=-3), st.integers(0, 2**31))
def test_powers_add_up_to_the_value(form: Polynomial, limit: int) -> None:
    sizes = launch_sizes((640,), (64,), {})
    powers = form.powers_of(VALUE_LIMIT, sizes)
    summed = sum(one * limit**power for power, one in enumerate(powers))
    assert summed == form.value({**sizes, VALUE_LIMIT: limit})


def pointer(position: int, scalar_type: str) -> Argument:
    return Argument(
        position=position, name=f"p{position}", kind=ArgumentKind.GLOBAL_BUFFER, type_name=f"{scalar_type} *",
        scalar_type=scalar_type, vector_width=1, access=Access.READ, element_bytes=4,
    )  # fmt: skip


SIGNATURE = Signature(
    arguments=(pointer(0, "int"), pointer(1, "float"), pointer(2, "float")),
    dims=1, required_local_size=None, static_local_bytes=0, static_features={},
)  # fmt: skip


def searched(holds: Callable[[int], bool]) -> int:
    """Return the largest number up to the limit of contents for which a monotone rule holds."""
    if holds(MOST):
        return MOST
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@given(st.lists(forms(NAMES), min_size=2, max_size=2), st.integers(1, 2**12))
def test_the_limit_is_what_a_search_finds(indexed: list[Polynomial], groups: int) -> None:
    """Two targets with extents of their own; forms with a factor that is no size do not count."""
    fixed = Polynomial(constant=0, terms=(Term(factors=("global_size_0",), coefficient=3),))
    targets = tuple(IndexTarget(position=at, form=form) for at, form in enumerate(indexed, start=1))
    analysis = Analysis(
        extents=tuple(Extent(position=at, form=fixed) for at in range(3)),
        index_roles=(IndexRole(position=0, rule=ContentsRule.BOUNDED, targets=targets),),
    )
    buffers = AnalysedBuffers(signature=SIGNATURE, analysis=analysis, max_launch_bytes=2**40)
    arguments = buffers.arguments((64 * groups,), (64,), {})
    sizes = launch_sizes((64 * groups,), (64,), {})

    def fits(limit: int) -> bool:
        inside = []
        for target in targets:
            try:
                reach = target.form.value({**sizes, VALUE_LIMIT: limit})
            except KeyError:
                continue
            inside.append(reach <= (arguments[target.position].elements or 0))
        return all(inside)

    assert arguments[0].contents is not None
    assert arguments[0].contents.limit == searched(fits)
