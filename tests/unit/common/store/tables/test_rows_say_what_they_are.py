"""What a row tells beside its time: why there is none, what was declared, what was invented, under which limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from llmperf_common.failures import CensorReason, Failure, FailureCode, Stage
from llmperf_common.records import ArgumentKind, Kernel, SizeRole
from llmperf_common.schemas import SAMPLES
from llmperf_common.store.tables.argument_rows import arguments_from_rows
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.rows import kernels_table, samples_table
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.row_checks import Surroundings, check_samples
from tests.support.factories.dataset_factory import make_kernel, make_result, make_timing
from tests.support.factories.earlier_dataset import unpack
from tests.unit.workers.measure.test_run_order import LIMIT_NS, config
from workers.corpus.read import read_corpus, read_sources, write_corpus
from workers.measure.run_order import FAR_TOO_LONG, HUNG_NS, RunOrder
from workers.plan.inputs import reference_bytes

SOURCE = """
typedef struct { float weight; int index; short flags[2]; } Item;
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void pick(__global const Item *items, __global REAL *restrict out, __constant float *table, const int n) {
    __local float shared[64];
    int i = get_global_id(0);
    shared[get_local_id(0)] = table[0];
    if (i < n) out[i] = items[i].weight * shared[get_local_id(0)];
}
"""
AROUND = Surroundings(tasks=None, devices=None, harness_version=None)


@pytest.fixture
def picked(tmp_path: Path) -> Kernel:
    (tmp_path / "pick.cl").write_text(SOURCE)
    (kernel,) = read_sources([tmp_path / "pick.cl"]).kernels
    return kernel


def kernel_row(kernel: Kernel, **told: Any) -> dict[str, Any]:
    (row,) = kernels_table([replace(make_result(kernel, [make_timing()]), **told)]).to_pylist()
    return dict(row)


def test_the_declared_arguments_come_back_from_the_rows(picked: Kernel) -> None:
    assert picked.signature is not None
    found = arguments_from_rows(kernel_row(picked)["args"])
    assert found == picked.signature.arguments
    items, out, table, n = found
    assert [one.is_const for one in (items, out)] == [True, False]
    assert table.kind is ArgumentKind.CONSTANT_BUFFER
    assert n.size_role is SizeRole.GUARD_0
    assert len(items.leaves) == 3


def test_inputs_are_rebuilt_from_the_rows_alone(picked: Kernel) -> None:
    assert picked.signature is not None
    found = arguments_from_rows(kernel_row(picked)["args"])
    assert found is not None
    for told, known in zip(found[:3], picked.signature.arguments, strict=False):
        rebuilt = reference_bytes(told, elements=100, seed=7)
        assert np.array_equal(rebuilt, reference_bytes(known, elements=100, seed=7))
        assert rebuilt.any()


def test_the_required_local_size_and_the_local_memory_are_told(picked: Kernel) -> None:
    row = kernel_row(picked)
    assert row["required_local_size"] == [64, 1, 1]
    assert row["static_local_bytes"] == 256
    plain = kernel_row(make_kernel())
    assert (plain["required_local_size"], plain["static_local_bytes"]) == (None, 0)


def test_arguments_of_a_row_before_version_6_are_not_known(tmp_path: Path) -> None:
    rows = open_dataset(unpack(tmp_path)).kernels(["args", "static_local_bytes"]).to_pylist()
    assert [arguments_from_rows(row["args"]) for row in rows] == [None, None]
    assert [row["static_local_bytes"] for row in rows] == [None, None]


def test_invented_macros_are_flagged(picked: Kernel, tmp_path: Path) -> None:
    assert picked.build_options == "-DREAL=float"
    assert kernel_row(picked)["invented_macros"] == ["-DREAL=float"]
    given = read_sources([tmp_path / "pick.cl"], build_options="-DREAL=float").kernels[0]
    assert given.kernel_id == picked.kernel_id
    assert kernel_row(given)["invented_macros"] == []
    write_corpus(tmp_path / "c.parquet", read_sources([tmp_path / "pick.cl"]))
    (kept,) = read_corpus(tmp_path / "c.parquet").kernels
    assert kept == picked
    assert kernel_row(replace(kept, invented_macros=None))["invented_macros"] is None


def test_the_limits_of_a_task_are_in_its_row() -> None:
    row = kernel_row(make_kernel(), task_budget_s=0.25, one_processor=True)
    assert (row["task_budget_s"], row["one_processor"]) == (0.25, True)
    row = kernel_row(make_kernel())
    assert (row["task_budget_s"], row["one_processor"]) == (None, None)


@pytest.mark.parametrize(("num_readings", "has_quartiles"), [(1, False), (3, False), (4, True)])
def test_there_are_no_quartiles_of_three_readings(num_readings: int, has_quartiles: bool) -> None:
    table = samples_table([make_result(make_kernel(), [make_timing(num_readings=num_readings)])])
    assert (table.column("iqr_ns")[0].as_py() is not None) == has_quartiles
    assert check_samples(table, "samples/a", AROUND) == []
    if has_quartiles:
        place = table.schema.get_field_index("iqr_ns")
        nulls = pa.nulls(table.num_rows, pa.float64())
        without = table.set_column(place, SAMPLES.field("iqr_ns"), nulls)
        (problem,) = check_samples(without, "samples/a", AROUND)
        assert problem.kind is ProblemKind.TIME


@pytest.mark.parametrize(
    ("took_ns", "reason"),
    [
        (HUNG_NS, CensorReason.LARGER_THAN_HUNG),
        (FAR_TOO_LONG * LIMIT_NS, CensorReason.LARGER_THAN_TOO_LONG),
    ],
)
def test_a_config_that_is_not_launched_says_why(took_ns: float, reason: CensorReason) -> None:
    order = RunOrder([config(64), config(128)], [took_ns, None], [1], max_launch_ns=LIMIT_NS)
    ((index, failure),) = order.take_hopeless()
    assert index == 1
    assert failure.censored is reason


def test_the_reason_is_a_column_and_is_checked() -> None:
    failure = Failure(
        code=FailureCode.OVER_TIME_BUDGET,
        stage=Stage.LAUNCH,
        detail="x",
        censored=CensorReason.TASK_BUDGET,
    )
    plain = replace(failure, censored=None)
    table = samples_table([make_result(make_kernel(), [failure, plain, make_timing()])])
    assert table.column("censor_reason").to_pylist() == ["task_budget", None, None]
    assert check_samples(table, "samples/a", AROUND) == []
    rows = table.to_pylist()
    rows[0]["censor_reason"], rows[2]["censor_reason"] = "whim", "hung"
    found = check_samples(pa.Table.from_pylist(rows, schema=SAMPLES), "samples/a", AROUND)
    assert [one.kind for one in found] == [ProblemKind.STATUS] * 2
