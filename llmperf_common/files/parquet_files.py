"""Writing Parquet files to paths of any bytes: Arrow itself takes only paths that are UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(table: pa.Table, path: Path, **options: Any) -> None:
    """Write a table to a new or existing file; ``options`` are those of ``pq.write_table``.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("wb") as stream:
        pq.write_table(table, stream, **options)
