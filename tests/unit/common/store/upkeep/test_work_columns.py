"""What a launch executes, in the rows: counted, not counted and why, or of a time before there were such columns."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.families.families import assign_families
from llmperf_common.features.work import OPTIONAL_WORK, WORK_KINDS, WORK_NAMES, Work
from llmperf_common.schemas import SAMPLES, SCHEMA_VERSION, missing_or_changed_columns
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.tables.reader import conform, open_dataset
from llmperf_common.store.tables.rows import samples_table
from llmperf_common.store.upkeep.merge import merge
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.row_checks import Surroundings, check_samples
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import (
    make_dataset,
    make_kernel,
    make_result,
    make_timing,
)
from tests.support.factories.earlier_dataset import NUM_ROWS, unpack

WORK = Work(
    **{
        name: {"float": 1.5, "int": 64, "bool": True}[kind]  # type: ignore[arg-type]
        for name, kind in WORK_KINDS.items()
    }
)
REASON = Failure(code=FailureCode.HANG, stage=Stage.PROBE, detail="the count was killed after 20 s")


def rows_with(*works: Work | Failure | None) -> pa.Table:
    result = make_result(make_kernel(), [make_timing() for _ in works])
    samples = [replace(one, work=work) for one, work in zip(result.samples, works, strict=True)]
    return samples_table([replace(result, samples=tuple(samples))])


def test_the_column_has_the_fields_of_the_record() -> None:
    assert [member.name for member in SAMPLES.field("work").type] == list(WORK_NAMES)
    assert SAMPLES.field("work").nullable


def test_a_row_holds_the_work_or_why_there_is_none() -> None:
    counted, failed, untried = rows_with(WORK, REASON, None).to_pylist()
    assert (counted["work"], counted["work_reason"]) == (asdict(WORK), None)
    assert (failed["work"], failed["work_reason"]) == (None, REASON.detail)
    assert (untried["work"], untried["work_reason"]) == (None, None)


@pytest.mark.parametrize(
    ("work", "reason", "text"),
    [
        (
            asdict(WORK) | {"fp32_ops": -1.0},
            None,
            "a count of work is missing, negative or infinite",
        ),
        (asdict(WORK) | {"barriers": float("nan")}, None, "a count of work is missing"),
        (asdict(WORK) | {"global_loads": None}, None, "a count of work is missing"),
        (asdict(WORK) | {"global_load_lines": -1.0}, None, "a count of work is missing"),
        (asdict(WORK) | {"group_bytes": float("inf")}, None, "a count of work is missing"),
        (asdict(WORK), "it hung", "the work was counted but work_reason says why not"),
    ],
)
def test_verification_finds_what_is_no_count(work: object, reason: str | None, text: str) -> None:
    row = rows_with(WORK).to_pylist()[0] | {"work": work, "work_reason": reason}
    around = Surroundings(tasks=None, devices=None, harness_version=None)
    (problem,) = check_samples(pa.Table.from_pylist([row], schema=SAMPLES), "samples/a", around)
    assert problem.kind is ProblemKind.WORK
    assert text in problem.what


def test_good_works_are_no_problem() -> None:
    around = Surroundings(tasks=None, devices=None, harness_version=None)
    some = replace(WORK, **dict.fromkeys(OPTIONAL_WORK))
    assert check_samples(rows_with(WORK, some, REASON, None), "samples/a", around) == []


def test_rows_counted_before_there_were_such_members_have_nulls_there() -> None:
    """Version 6 got them before its release: what wrote without them is read with nulls, and is no problem."""
    table = rows_with(WORK, None)
    old = pa.struct([one for one in SAMPLES.field("work").type if one.name not in OPTIONAL_WORK])
    rows = [
        row and {name: n for name, n in row.items() if name not in OPTIONAL_WORK}
        for row in table.column("work").to_pylist()
    ]
    place = table.column_names.index("work")
    earlier = table.set_column(place, pa.field("work", old), pa.array(rows, old))
    assert missing_or_changed_columns("samples", earlier.schema) == []
    read = conform(earlier, SAMPLES)
    assert read.schema == SAMPLES
    counted, uncounted = read.column("work").to_pylist()
    assert counted == asdict(replace(WORK, **dict.fromkeys(OPTIONAL_WORK)))
    assert uncounted is None
    around = Surroundings(tasks=None, devices=None, harness_version=None)
    assert check_samples(read, "samples/a", around) == []


def test_a_dataset_of_schema_version_5_opens_with_nulls(tmp_path: Path) -> None:
    dataset = open_dataset(unpack(tmp_path))
    assert dataset.manifest.schema_version == 5
    samples = dataset.samples()
    assert samples.schema == SAMPLES
    assert samples.num_rows == NUM_ROWS
    assert samples.column("work").null_count == samples.column("work_reason").null_count == NUM_ROWS
    assert verify(tmp_path / "data").problems == ()


def test_a_dataset_of_schema_version_5_is_merged_with_its_like_only(tmp_path: Path) -> None:
    """Harness version 1: times of today's mean something else."""
    old = unpack(tmp_path)
    other = unpack(tmp_path / "other")
    merge([old, other], tmp_path / "merged", assign_families=assign_families)
    merged = open_dataset(tmp_path / "merged")
    assert merged.num_samples == NUM_ROWS
    assert merged.manifest.schema_version == SCHEMA_VERSION
    assert verify(tmp_path / "merged").problems == ()
    new = make_dataset(tmp_path / "new")
    with pytest.raises(StoreError, match=r"by version 2 of the measuring code .* by version 1"):
        merge([old, new], tmp_path / "mixed", assign_families=assign_families)
