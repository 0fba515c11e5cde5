"""Choose the record of a device for a merged dataset when several sources have one.

Owns the choice: the first source's record, with the best value of each peak. A peak is what the
device can reach at best; a measurement on a busy machine gives less, never more. ``merge.py``
merges samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from llmperf_common.schemas import DEVICES
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.files.names import checked_id
from llmperf_common.store.tables.reader import Dataset

PEAK_TOLERANCE = 0.10
"""Share of the best peak by which sources may differ without a report. Measurements on quiet
machines differ by 1 to 5 %."""

_SPREAD_OF_PEAK = {
    "peak_dram_gbps": "peak_dram_spread",
    "peak_l2_gbps": "peak_l2_spread",
    "peak_fp32_gflops": "peak_fp32_spread",
    "peak_fp64_gflops": "peak_fp64_spread",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakDifference:
    """A peak on which the sources differ by more than ``PEAK_TOLERANCE``; the best was kept.

    ``lowest`` and ``best`` are in the unit that the name in ``column`` ends with: GB/s or GFLOP/s.
    """

    device_id: str
    name: str
    column: str
    lowest: float
    best: float

    def __str__(self) -> str:
        """Return the difference in one line.

        >>> peaks = {"column": "peak_l2_gbps", "lowest": 75.62, "best": 151.4}
        >>> print(PeakDifference(device_id="d1", name="CPU", **peaks))
        device CPU (d1): peak_l2_gbps is 75.6 to 151 in the sources (50 % apart); the best is kept
        """
        apart = 100 * (1 - self.lowest / self.best)
        return (
            f"device {self.name} ({self.device_id}): {self.column} is {self.lowest:.3g} to "
            f"{self.best:.3g} in the sources ({apart:.0f} % apart); the best is kept"
        )


def merge_devices(
    datasets: Sequence[Dataset],
) -> tuple[dict[str, pa.Table], tuple[PeakDifference, ...]]:
    """Return one row for each device id, as a table, and the peaks on which the sources differ."""
    records: dict[str, list[dict[str, Any]]] = {}
    for dataset in datasets:
        for table in dataset.iter_table("devices"):
            for row in table.to_pylist():
                records.setdefault(_id_of(row, dataset), []).append(row)
    tables = {
        device: pa.Table.from_pylist([_merged(rows)], schema=DEVICES)
        for device, rows in records.items()
    }
    differences = (one for rows in records.values() for one in _differences(rows))
    return tables, tuple(differences)


def _id_of(row: dict[str, Any], dataset: Dataset) -> str:
    """Return a row's device id after checking it, because the id becomes a file's name."""
    try:
        return checked_id(row["device_id"], "device_id")
    except ValueError as error:
        raise StoreError(
            f"{dataset.fs.describe()}: {error}: run `llmperf dataset verify "
            f"{dataset.fs.describe()}`"
        ) from None


def _merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    for peak, spread in _SPREAD_OF_PEAK.items():
        best = max(rows, key=lambda row: row[peak] or 0.0)
        merged[peak], merged[spread] = best[peak], best[spread]
    return merged


def _differences(rows: Sequence[dict[str, Any]]) -> list[PeakDifference]:
    found = []
    for peak in _SPREAD_OF_PEAK:
        values = [row[peak] for row in rows if row[peak] is not None]
        if values and min(values) < (1 - PEAK_TOLERANCE) * max(values):
            found.append(
                PeakDifference(
                    device_id=rows[0]["device_id"],
                    name=rows[0]["name"],
                    column=peak,
                    lowest=min(values),
                    best=max(values),
                )
            )
    return found
