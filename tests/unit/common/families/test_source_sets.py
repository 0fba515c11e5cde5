"""Token runs that a run keeps: exact overlaps, whatever was saved and read in between."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.families.families import MIN_JACCARD, assign_families
from llmperf_common.families.shingles import jaccard, views_of
from llmperf_common.families.source_sets import SourceSets
from tests.support.factories.synthetic_dataset import make_source

WORDS = st.lists(
    st.sampled_from(
        ["a", "b", "c", "+", "-", "(", ")", "[", "]", ";", "float", "if", "for", "sin", "1", "2.0"]
    ),
    max_size=30,
)


def through_parquet(table: pa.Table) -> pa.Table:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return pq.read_table(io.BytesIO(buffer.getvalue()))


@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=8), WORDS.map(" ".join))
@settings(deadline=None, max_examples=60)
def test_overlaps_are_those_of_the_sources_also_when_read_back(sources, asked):
    sets = SourceSets.of_sources(sources)
    expected = [
        max(jaccard(a, b) for a, b in zip(views_of(asked), views_of(source), strict=True))
        for source in sources
    ]
    assert sets.overlaps(asked) == pytest.approx(np.array(expected))
    again = SourceSets.of_table(through_parquet(sets.table()))
    assert len(again) == len(sources)
    assert np.array_equal(again.overlaps(asked), sets.overlaps(asked))


def test_near_duplicates_are_those_of_the_families():
    first = make_source("one", 1)
    renamed = first.replace("float a", "float sum").replace(" a +=", " sum +=")
    renamed = renamed.replace("y[i] = a", "y[i] = sum").replace("one", "other")
    kernels = [("a", first, ""), ("b", renamed, ""), ("c", make_source("two", 2), "")]
    assert assign_families(kernels) == {"a": "a", "b": "a", "c": "c"}
    overlaps = SourceSets.of_sources([first, kernels[2][1]]).overlaps(renamed)
    assert (overlaps >= MIN_JACCARD).tolist() == [True, False]


def test_an_empty_collection_is_like_nothing():
    sets = SourceSets.of_table(through_parquet(SourceSets.of_sources([]).table()))
    assert len(sets) == 0
    assert sets.overlaps("a b c").tolist() == []


def test_damaged_columns_are_refused():
    table = SourceSets.of_sources([make_source("k", 1), make_source("k", 2)]).table()
    with pytest.raises(ValueError, match="runs_1"):
        SourceSets.of_table(table.drop_columns(["runs_1"]))
    none = pa.array([[]] * 2, pa.list_(pa.uint32()))
    short = table.set_column(table.column_names.index("new_0"), "new_0", none)
    with pytest.raises(ValueError, match="does not hold"):
        SourceSets.of_table(short)
