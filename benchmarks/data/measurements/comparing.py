"""Whether two datasets have equal rows, value for value, even if their shards differ."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from llmperf_common.store.tables.reader import Dataset

_KEYS = {"samples": "sample_id", "kernels": "task_id", "devices": "device_id"}


def differences(one: Dataset, other: Dataset) -> Iterator[str]:
    """Yield a line for each table with other rows, or for each column that differs."""
    for table, key in _KEYS.items():
        first, second = (dataset.iter_table(table) for dataset in (one, other))
        left, right = (pa.concat_tables(parts).sort_by(key) for parts in (first, second))
        if not left.column(key).equals(right.column(key)):
            yield f"{table}: {left.num_rows} and {right.num_rows} rows, not the same {key}s"
            continue
        for name in left.column_names:
            a, b = left.column(name).to_pylist(), right.column(name).to_pylist()
            if differing := sum(x != y for x, y in zip(a, b, strict=True)):
                yield f"{table}.{name}: {differing} of {len(a)} rows differ"
