"""Predictions of many launches as a table with one row per launch: CSV, Parquet or JSON lines.

Owns the columns, and the file that ``predict --configs … --out`` writes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf.prediction.configs import Config
from llmperf.prediction.record import Prediction, time_text
from llmperf_common.config import ConfigError
from llmperf_common.csv_cells import safe_text
from llmperf_common.files.outputs import file_to_write
from llmperf_common.files.replacing import replacing

_VERSION_KEY = b"llmperf.predictions_version"
_VERSION = 1

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("kernel", pa.string()),
        pa.field("device", pa.string()),
        pa.field("global_size", pa.list_(pa.int64())),
        pa.field("local_size", pa.list_(pa.int64())),
        pa.field("args", pa.string(), metadata={"meaning": "JSON, as they were given"}),
        pa.field("time_ns", pa.float64(), metadata={"unit": "ns"}),
        pa.field("level", pa.float64()),
        pa.field("low_ns", pa.float64(), metadata={"unit": "ns"}),
        pa.field("high_ns", pa.float64(), metadata={"unit": "ns"}),
        pa.field("bound", pa.string()),
        pa.field("ood", pa.bool_()),
        pa.field("work", pa.string()),
        pa.field("warnings", pa.list_(pa.string())),
    ]
)
"""The columns of CSV and Parquet. CSV writes sizes as ``64,64``, joins warnings by semicolons, and
writes an apostrophe before a text that a spreadsheet could evaluate (``csv_cells.py``)."""

HEAD = ("launch", "global size", "local size", "time", "low", "high", "bound", "ood")
"""The columns of ``shown_rows``."""


def documents(configs: Sequence[Config], predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return one JSON object per launch: sizes, arguments, then the keys of ``predict --json``."""
    left_out = {"local_size_best", "sweep"}
    return [
        {
            **({} if config.id is None else {"id": config.id}),
            "global_size": list(_sizes(config.launch.global_size)),
            "local_size": list(_sizes(config.launch.local_size)),
            "args": dict(config.launch.args or {}),
            **{key: value for key, value in one.items() if key not in left_out},
        }
        for config, one in zip(configs, predictions, strict=True)
    ]


def shown_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row with the columns ``HEAD`` for each document; a number replaces a missing id."""
    return [
        (
            str(row.get("id", number)),
            _size_text(row["global_size"]),
            _size_text(row["local_size"]),
            *(
                "-" if nanoseconds is None else time_text(nanoseconds)
                for nanoseconds in (
                    row["time_ns"],
                    row["interval"]["low_ns"],
                    row["interval"]["high_ns"],
                )
            ),
            row["bound"],
            "yes" if row["ood"] else "no",
        )
        for number, row in enumerate(rows, start=1)
    ]


def out_file(path: Path) -> Callable[[Sequence[dict[str, Any]]], None]:
    """Return a function that writes documents to ``path`` atomically.

    The suffix of ``path`` selects the format.

    ``path`` is checked now, before anything is predicted.

    Raises:
        ConfigError: The suffix is not that of a known format.
        OutputTaken: ``path`` exists and does not hold predictions of llmperf.
    """
    make = _MAKERS.get(path.suffix.lower())
    if make is None:
        raise ConfigError(
            f"--out {path}: the name must end in one of {', '.join(_MAKERS)}, which selects the "
            "format"
        )
    target = file_to_write(path, is_ours=_is_ours, what="predictions")

    def write(rows: Sequence[dict[str, Any]]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as partial:
            partial.write_bytes(make(rows))

    return write


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return documents as CSV with a header; a null value is an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(SCHEMA.names)
    for row in map(_flat, rows):
        cells = {
            **row,
            "global_size": _size_text(row["global_size"]),
            "local_size": _size_text(row["local_size"]),
            "ood": str(row["ood"]).lower(),
            "warnings": "; ".join(row["warnings"]),
        }
        values = (cells[name] for name in SCHEMA.names)
        writer.writerow([safe_text(one) if isinstance(one, str) else one for one in values])
    return buffer.getvalue()


def _json_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    schema = SCHEMA.with_metadata({_VERSION_KEY: str(_VERSION)})
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(map(_flat, rows)), schema=schema), buffer)
    return buffer.getvalue()


_MAKERS: dict[str, Callable[[Sequence[dict[str, Any]]], bytes]] = {
    ".csv": lambda rows: csv_text(rows).encode(),
    ".parquet": _parquet,
    ".jsonl": _json_lines,
}


def _is_ours(path: Path) -> bool:
    """Whether a file holds predictions of llmperf, in any of the formats."""
    try:
        with path.open("rb") as stream:
            first = stream.readline(1 << 16)
        if first.startswith(b"PAR1"):
            return _VERSION_KEY in (pq.read_schema(path).metadata or {})
        if first.startswith(b"{"):
            return bool(
                {"kernel", "device", "time_ns", "interval", "bound"} <= json.loads(first).keys()
            )
        return first.decode().strip() == ",".join(SCHEMA.names)
    except (OSError, ValueError, pa.ArrowException):
        return False


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    given = row.get("id")
    return {
        **{name: row.get(name) for name in SCHEMA.names},
        **row["interval"],
        "id": None if given is None else str(given),
        "args": json.dumps(row["args"], ensure_ascii=False),
    }


def _sizes(size: Any) -> Sequence[int]:
    return (size,) if isinstance(size, int) else size


def _size_text(size: Sequence[int]) -> str:
    return ",".join(map(str, size))
