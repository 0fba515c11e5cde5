"""Join of a dataset with work that was counted later (``benchmarks.data.count_work``).

A dataset that was collected with work has it in ``samples.work`` and does not need this join.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from llmperf_common.features.features import features_from_tables
from llmperf_common.features.table_columns import WORK_COLUMN
from llmperf_common.features.work import WORK_NAMES
from trainer.data.dataset import TrainingData


def with_work(data: TrainingData, folder: Path) -> tuple[TrainingData, npt.NDArray[np.bool_]]:
    """Return the rows with the work from ``folder``, and which rows the folder has, shape (n,).

    If the folder has a row without work, the counting of that row failed.
    """
    counted = ds.dataset(sorted(folder.glob("work-*.parquet"))).to_table()
    row = pc.index_in(
        data.rows.samples.column("sample_id"),
        value_set=counted.column("sample_id").combine_chunks(),
    )
    names = [name for name in WORK_NAMES if name in counted.column_names]
    members = [counted.column(name).combine_chunks() for name in names]
    is_lost = pc.is_null(counted.column(WORK_NAMES[0])).combine_chunks()
    structs = pa.StructArray.from_arrays(members, names=names, mask=is_lost)
    samples = data.rows.samples
    if WORK_COLUMN in samples.column_names:
        samples = samples.drop_columns([WORK_COLUMN])
    samples = samples.append_column(WORK_COLUMN, structs.take(row.combine_chunks()))
    features = features_from_tables(samples, data.rows.kernels, data.devices)
    asked = pc.is_valid(row).to_numpy()
    return replace(data, rows=replace(data.rows, samples=samples, features=features)), asked
