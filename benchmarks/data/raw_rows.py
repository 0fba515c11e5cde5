"""Raw rows of a measurement: read from CSV or Parquet; written as small Parquet files.

``python -m benchmarks.data.raw_rows FILE.csv [--sort COLUMN …] [--out FILE.parquet]``

Owns the form in which ``benchmarks/raw`` keeps large tables. They are compressed by zstd. Columns
of whole numbers are integers with their bytes split by place, and columns of repeated values have a
dictionary. Programs that measure write CSV; this program makes large tables smaller before they are
kept.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, str]
_MOST_INT32 = 2**31 - 1
_ZSTD_LEVEL = 19
"""Compression level of zstd. It is high, because the files are written once: small size is more
important than fast writing."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows as text by column, as ``csv.DictReader`` gives them. A missing value is "".

    Raises:
        ValueError: The file is neither ``.csv`` nor ``.parquet``.
    """
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
        return [
            {name: "" if value is None else str(value) for name, value in row.items()}
            for row in rows
        ]
    raise ValueError(f"{path}: rows are read from .csv and .parquet")


def write_parquet(path: Path, rows: Sequence[Row], sort_by: Sequence[str] = ()) -> None:
    """Write rows whose values are text. Sorting brings equal and near values together.

    Columns in which all values are numbers become numbers. A column stays text if reading it back
    would change a text, as with identifiers that have a leading zero. The exception is a whole
    number such as ``4992.0``, which is read back as ``4992``.

    Raises:
        ValueError: There are no rows, or the rows lack a column to sort by.
    """
    if not rows:
        raise ValueError("there are no rows to write")
    unknown = [name for name in sort_by if name not in rows[0]]
    if unknown:
        raise ValueError(f"no column {', '.join(unknown)}: there are {', '.join(rows[0])}")
    columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
    table = pa.table(columns)
    if sort_by:
        table = table.sort_by([(name, "ascending") for name in sort_by])
    whole = [one.name for one in table.schema if pa.types.is_integer(one.type)]
    repeated = [
        name
        for name in table.column_names
        if name not in whole and 2 * len(table[name].unique()) < len(table)
    ]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=repeated,
        column_encoding=dict.fromkeys(whole, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
    )


def _column(cells: Sequence[str]) -> pa.Array:
    """Return the cells as integers, else as floats, else as text; "" as null."""
    filled = [cell for cell in cells if cell]
    as_whole = [_whole(cell) for cell in filled]
    if filled and None not in as_whole:
        largest = max(abs(number) for number in as_whole if number is not None)
        kind = pa.int32() if largest <= _MOST_INT32 else pa.int64()
        return pa.array([_whole(cell) if cell else None for cell in cells], kind)
    if filled and all(_is_float(cell) for cell in filled):
        return pa.array([float(cell) if cell else None for cell in cells], pa.float64())
    return pa.array([cell or None for cell in cells], pa.string())


def _whole(cell: str) -> int | None:
    """Return a whole number, written as ``12`` or ``12.0``; None for any other text.

    >>> _whole("12.0"), _whole("012"), _whole("12e3"), _whole("1.5")
    (12, None, None, None)
    """
    text = cell.removesuffix(".0")
    try:
        return int(text) if str(int(text)) == text else None
    except ValueError:
        return None


def _is_float(cell: str) -> bool:
    """Return whether the text of the parsed float equals this text, apart from a final ``.0``."""
    try:
        return str(float(cell)) == cell or _whole(cell) is not None
    except ValueError:
        return False


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data.raw_rows",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("rows", type=Path, metavar="FILE.csv")
    parser.add_argument("--sort", nargs="+", default=[], metavar="COLUMN")
    parser.add_argument("--out", type=Path, help="default: the same name with .parquet")
    given = parser.parse_args()
    out = given.out or given.rows.with_suffix(".parquet")
    try:
        write_parquet(out, read_rows(given.rows), given.sort)
    except (OSError, ValueError) as error:
        print(f"{given.rows}: {error}", file=sys.stderr)
        return 3
    print(f"{out}: {out.stat().st_size:,} bytes, {given.rows}: {given.rows.stat().st_size:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
