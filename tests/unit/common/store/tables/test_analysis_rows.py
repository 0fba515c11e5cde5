"""A kernel's analysis in a dataset: what goes in comes out, and earlier datasets are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from llmperf_common.records import ArgumentKind, LaunchArgument, launch_argument_json
from llmperf_common.schemas import KERNELS, SAMPLES, missing_or_changed_columns
from llmperf_common.store.tables.analysis_rows import (
    ANALYSIS_COLUMNS,
    INPUTS_COLUMN,
    analysis_columns,
    analysis_from_row,
    storable,
)
from llmperf_common.store.tables.reader import conform
from llmperf_common.store.tables.rows import kernels_table, samples_table
from tests.support.factories.dataset_factory import good_outcome, make_kernel, make_result

NUMBERS = st.integers(-(2**63), 2**63 - 1)
POLYNOMIALS = st.builds(
    Polynomial,
    constant=NUMBERS,
    terms=st.lists(
        st.builds(
            Term,
            factors=st.lists(st.sampled_from(["global_size_0", "n"]), max_size=3).map(tuple),
            coefficient=NUMBERS,
        ),
        max_size=3,
    ).map(tuple),
)
POSITIONS = st.integers(0, 200)
SHARES = st.none() | st.floats(0, 1)
CHOICES = st.builds(
    InputChoice,
    floats_free=st.none() | st.booleans(),
    scalars=st.lists(
        st.builds(ChosenScalar, position=POSITIONS, value=st.sampled_from(ScalarChoice)), max_size=3
    ).map(tuple),
    contents=st.none()
    | st.builds(Contents, rule=st.sampled_from(ContentsRule), limit=st.integers(1, 2**32)),
    num_tried=st.integers(0, 16),
    plain_share=SHARES,
    active_share=SHARES,
    reason=st.text("abc", max_size=5),
)
ANALYSES = st.builds(
    Analysis,
    extents=st.lists(
        st.builds(
            Extent,
            position=POSITIONS,
            form=st.none() | POLYNOMIALS,
            cap=st.none() | POLYNOMIALS,
            validated=st.booleans(),
            reason=st.text(max_size=5),
        ),
        max_size=3,
    ).map(tuple),
    data_dependent=st.none() | st.booleans(),
    index_roles=st.lists(
        st.builds(
            IndexRole,
            position=POSITIONS,
            rule=st.sampled_from(ContentsRule),
            targets=st.lists(
                st.builds(IndexTarget, position=POSITIONS, form=POLYNOMIALS), max_size=2
            ).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    failure=st.text(max_size=5),
    overflowing_local_sizes=st.lists(
        st.lists(st.integers(1, 1024), min_size=1, max_size=3).map(tuple), max_size=2
    ).map(tuple),
    inputs=st.none() | CHOICES,
)


@settings(max_examples=60, deadline=None)
@given(st.none() | ANALYSES)
def test_what_goes_in_comes_out(analysis: Analysis | None) -> None:
    kernel = replace(make_kernel(), analysis=analysis)
    table = kernels_table([make_result(kernel, [good_outcome(0, 0)])])
    assert table.schema.equals(KERNELS)
    (row,) = table.select([*ANALYSIS_COLUMNS, INPUTS_COLUMN]).to_pylist()
    assert analysis_from_row(row) == analysis
    known = replace(analysis, inputs=None) if analysis else None
    assert analysis_from_row({name: row[name] for name in ANALYSIS_COLUMNS}) == known


def test_a_kernel_that_was_not_analysed_has_an_empty_list_and_nulls() -> None:
    (row,) = kernels_table([make_result(make_kernel(), [good_outcome(0, 0)])]).to_pylist()
    assert {name: row[name] for name in ANALYSIS_COLUMNS} == {
        "analysis": [], "data_dependent": None, "index_roles": None, "analysis_failure": None,
        "overflowing_local_sizes": None,
    }  # fmt: skip
    assert analysis_columns(None) == {"analysis": []}


def test_a_row_of_schema_version_1_holds_an_analysis_without_roles() -> None:
    entry = {"position": 1, "constant": 2, "terms": None, "cap_constant": None, "cap_terms": None,
             "validated": True, "reason": None}  # fmt: skip
    found = analysis_from_row({"analysis": [entry]})
    assert found == Analysis(
        extents=(Extent(position=1, form=Polynomial(constant=2), validated=True),)
    )
    assert analysis_from_row({"analysis": []}) is None


def test_an_unknown_rule_is_an_error() -> None:
    role = {"position": 0, "rule": "shuffled", "targets": []}
    with pytest.raises(ValueError, match="shuffled"):
        analysis_from_row({"analysis": [], "index_roles": [role]})


def test_numbers_beyond_64_bits_are_no_form() -> None:
    large = Polynomial(constant=0, terms=(Term(factors=("n",), coefficient=2**63),))
    small = Polynomial(constant=-(2**63))
    analysis = Analysis(
        extents=(
            Extent(position=0, form=large, validated=True),
            Extent(position=1, form=small, cap=large, validated=True),
            Extent(position=2, form=small, validated=True),
        ),
        index_roles=(
            IndexRole(
                position=2,
                rule=ContentsRule.BOUNDED,
                targets=(IndexTarget(position=0, form=large), IndexTarget(position=1, form=small)),
            ),
        ),
    )
    kept = storable(analysis)
    assert [one.form for one in kept.extents] == [None, None, small]
    assert "64 bits" in kept.extents[0].reason
    assert [one.position for one in kept.index_roles[0].targets] == [1]
    assert storable(kept) == kept


def test_the_content_rule_is_stored_with_the_argument() -> None:
    result = make_result(make_kernel(), [good_outcome(0, 0)])
    steered = LaunchArgument(
        position=0,
        kind=ArgumentKind.GLOBAL_BUFFER,
        elements=8,
        contents=Contents(rule=ContentsRule.PREFIX, limit=100),
    )
    assert launch_argument_json(steered) == [0, "global_buffer", 8, None, "prefix", 100]
    assert launch_argument_json(replace(steered, contents=None)) == [0, "global_buffer", 8, None]
    (sample,) = result.samples
    config = replace(sample.config, args=(steered, *sample.config.args[1:]))
    table = samples_table([replace(result, samples=(replace(sample, config=config),))])
    first, *others = table.column("args")[0].as_py()
    assert (first["contents"], first["contents_limit"]) == ("prefix", 100)
    assert all(other["contents"] is None is other["contents_limit"] for other in others)


def test_arguments_of_schema_version_1_are_read(tmp_path: Path) -> None:
    table = samples_table([make_result(make_kernel(), [good_outcome(0, 0)])])
    old = pa.list_(
        pa.struct(
            [("position", pa.int32()), ("kind", pa.string()), ("elements", pa.int64()), ("value", pa.float64())]
        )
    )  # fmt: skip
    rows = [[{k: a[k] for k in ("position", "kind", "elements", "value")} for a in args]
            for args in table.column("args").to_pylist()]  # fmt: skip
    at = SAMPLES.get_field_index("args")
    earlier = table.set_column(at, pa.field("args", old, nullable=False), pa.array(rows, old))
    assert missing_or_changed_columns("samples", earlier.schema) == []
    assert conform(earlier, SAMPLES).equals(table)
    other = pa.list_(pa.struct([("position", pa.string())]))
    changed = table.set_column(at, pa.field("args", other), pa.nulls(1, other))
    assert missing_or_changed_columns("samples", changed.schema)


def test_no_path_of_the_host_is_stored() -> None:
    analysis = Analysis(extents=(), failure="no build: -I /home/ann/site-packages/pyopencl/cl")
    assert analysis_columns(analysis)["analysis_failure"] == "no build: -I cl"
