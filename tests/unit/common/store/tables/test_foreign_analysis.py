"""An analysis that another user wrote: no number of it ends a run when its row is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from llmperf_common.analysis import (
    Analysis,
    ChosenScalar,
    Contents,
    ContentsRule,
    Extent,
    IndexRole,
    IndexTarget,
    InputChoice,
    Polynomial,
    ScalarChoice,
    Term,
)
from llmperf_common.records import Access, Argument, ArgumentKind, Signature
from llmperf_common.schemas import KERNELS
from llmperf_common.store.tables.analysis_rows import analysis_columns
from llmperf_common.store.tables.foreign_analysis import check_analysis, check_positions
from llmperf_common.store.tables.rows import check_storable

FORM = Polynomial(constant=1, terms=(Term(factors=("global_size_0",), coefficient=1),))
ANALYSIS = Analysis(
    extents=(Extent(position=0, form=FORM, cap=FORM), Extent(position=1, form=FORM)),
    data_dependent=True,
    index_roles=(
        IndexRole(
            position=1,
            rule=ContentsRule.BOUNDED,
            targets=(IndexTarget(position=0, form=FORM),),
        ),
    ),
    overflowing_local_sizes=((17, 1),),
    inputs=InputChoice(
        scalars=(ChosenScalar(position=2, value=ScalarChoice.ROOT),),
        contents=Contents(rule=ContentsRule.FLAGS, limit=2),
        num_tried=3,
        plain_share=0.5,
        active_share=1.0,
    ),
)
COLUMNS = pa.schema([KERNELS.field(name) for name in analysis_columns(ANALYSIS)])
KINDS = (ArgumentKind.GLOBAL_BUFFER, ArgumentKind.GLOBAL_BUFFER, ArgumentKind.SCALAR)
SIGNATURE = Signature(
    arguments=tuple(
        Argument(
            position=position, name=f"a{position}", kind=kind, type_name="int", scalar_type="int",
            vector_width=1, element_bytes=4, access=Access.READ,
        )
        for position, kind in enumerate(KINDS)
    ),
    dims=1, required_local_size=None, static_local_bytes=0, static_features={},
)  # fmt: skip


def changed(value: Any, new: object, of: type) -> Iterator[Any]:
    """Yield ``value`` once for each number of type ``of`` in it, with ``new`` in its place."""
    if type(value) is of:
        yield new
    elif isinstance(value, tuple):
        for place, inner in enumerate(value):
            for one in changed(inner, new, of):
                yield (*value[:place], one, *value[place + 1 :])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for one in changed(getattr(value, field.name), new, of):
                yield dataclasses.replace(value, **{field.name: one})


def check(analysis: Analysis) -> None:
    check_analysis(analysis)
    check_positions(analysis, SIGNATURE)
    check_storable([analysis])


def is_accepted(analysis: Analysis) -> bool:
    try:
        check(analysis)
    except ValueError:
        return False
    return True


def test_an_analysis_as_llmperf_writes_it_is_accepted() -> None:
    check(ANALYSIS)


@pytest.mark.parametrize(
    "number",
    [2**31, -(2**31) - 1, 2**63, 2**70, 10**5000],
    ids=lambda number: f"{number.bit_length()} bits",
)
def test_no_whole_number_can_end_a_run_at_its_commit(number: int) -> None:
    changes = list(changed(ANALYSIS, number, int))
    assert len(changes) >= 15
    for analysis in changes:
        if is_accepted(analysis):
            table = pa.Table.from_pylist([analysis_columns(analysis)], schema=COLUMNS)
            assert table.num_rows == 1


@pytest.mark.parametrize("number", [float("nan"), 9.0, -1.0])
def test_every_share_is_checked(number: float) -> None:
    changes = list(changed(ANALYSIS, number, float))
    assert len(changes) == 2
    for analysis in changes:
        with pytest.raises(ValueError, match="share of work-items"):
            check(analysis)


def test_half_of_a_surrogate_pair_is_refused() -> None:
    extent = dataclasses.replace(ANALYSIS.extents[0], reason="\ud800")
    with pytest.raises(ValueError, match="column analysis cannot hold"):
        check_storable([ANALYSIS, dataclasses.replace(ANALYSIS, extents=(extent,))])


@pytest.mark.parametrize(
    ("analysis", "words"),
    [
        (Analysis(extents=(Extent(position=3, form=None),)), "argument 3, but .* has 3 arguments"),
        (Analysis(extents=(Extent(position=-1, form=None),)), "an extent is of argument -1"),
        (Analysis(extents=(Extent(position=2, form=None),)), "argument 2, which is no buffer"),
        (
            Analysis(
                extents=(),
                inputs=InputChoice(scalars=(ChosenScalar(position=0, value=ScalarChoice.LOW),)),
            ),
            "argument 0, which is no scalar",
        ),
    ],
)
def test_a_position_names_an_argument_of_a_fitting_kind(analysis: Analysis, words: str) -> None:
    check_analysis(analysis)
    with pytest.raises(ValueError, match=words):
        check_positions(analysis, SIGNATURE)


def test_a_kernel_without_a_signature_has_no_argument() -> None:
    check_positions(Analysis(extents=()), None)
    with pytest.raises(ValueError, match="0 arguments"):
        check_positions(ANALYSIS, None)
