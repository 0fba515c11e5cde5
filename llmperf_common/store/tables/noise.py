"""Judge from a run's rows and shards whether other load disturbed its machine.

Owns the two measures, their limits, and the warning. All rows are kept, even from a disturbed
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.failures import OK_STATUS
from llmperf_common.records import SentinelReading

NOISE_COLUMNS = ("status", "median_ns", "iqr_ns")
JUDGED_FROM_NS, JUDGED_TO_NS = 100_000.0, 5_000_000.0
"""Lower and upper limit, in ns, of the median times that are judged. The times of shorter launches
vary by microseconds because of the host; longer launches have too few readings for an interquartile
range (IQR)."""
MAX_RELATIVE_IQR = 0.03
"""Limit for the median over rows of IQR / median time. A quiet H200 has 0.005 at 0.1 to 1 ms
(docs/explanation/measurement.md), two shared CPU cores have 0.04 to 0.26."""
MAX_SENTINEL_DRIFT = 0.25
"""Limit for p90 / p10 - 1 of the readings of one device's sentinel (a fixed kernel). A cluster run
gives up a GPU at the same share."""
_FEWEST_ROWS = 20
_FEWEST_READINGS = 5

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much the times of a run vary; None where there are too few rows or readings.

    Attributes:
        num_rows: number of ok rows of 0.1 to 5 ms.
        relative_iqr: the rows' median of interquartile range / median; 0.03 is 3 %.
        num_readings: number of sentinel readings of the device with the largest drift.
        sentinel_drift: that device's p90 / p10 - 1; 0.25 is 25 %.
    """

    num_rows: int
    relative_iqr: float | None
    num_readings: int
    sentinel_drift: float | None

    @property
    def warning(self) -> str | None:
        """The message for the user; None if the machine was quiet or cannot be judged."""
        found = []
        if self.relative_iqr is not None and self.relative_iqr > MAX_RELATIVE_IQR:
            found.append(
                f"half of the {self.num_rows:,} launches of 0.1 to 5 ms scatter by more than "
                f"{self.relative_iqr:.1%} (interquartile range / median; limit "
                f"{MAX_RELATIVE_IQR:.0%})"
            )
        if self.sentinel_drift is not None and self.sentinel_drift > MAX_SENTINEL_DRIFT:
            found.append(
                f"a fixed sentinel kernel took {self.sentinel_drift:.0%} longer at times "
                f"(p90 / p10 of {self.num_readings:,} readings; limit {MAX_SENTINEL_DRIFT:.0%})"
            )
        if not found:
            return None
        return (
            f"the machine was not quiet: {'; '.join(found)}. All rows are kept; "
            "for better times collect again with no other program at work"
        )


def relative_iqrs(samples: pa.Table) -> Floats:
    """Return interquartile range / median of the rows that can be judged, shape (rows,).

    Args:
        samples: a table with ``NOISE_COLUMNS``; if a column is missing, the result is empty.
    """
    if not set(NOISE_COLUMNS) <= set(samples.column_names):
        return np.empty(0, np.float32)
    median_ns = samples.column("median_ns")
    is_judged = pc.and_(
        pc.equal(samples.column("status"), OK_STATUS),
        pc.and_(
            pc.greater_equal(median_ns, JUDGED_FROM_NS), pc.less_equal(median_ns, JUDGED_TO_NS)
        ),
    )
    ratios = pc.divide(samples.column("iqr_ns"), median_ns).filter(is_judged).drop_null()
    found = np.asarray(ratios.to_numpy(), np.float32)
    return found[np.isfinite(found)]


def noise_of(ratios: Floats, sentinel: Sequence[SentinelReading]) -> Noise:
    """Return the noise of a run.

    Args:
        ratios: ``relative_iqrs`` of all rows of the run.
        sentinel: the sentinel readings of all devices of the run.

    >>> noise_of(np.full(30, 0.1, np.float32), ()).relative_iqr
    0.1
    >>> noise_of(np.full(30, 0.01, np.float32), ()).warning is None
    True
    """
    by_device: dict[str, list[float]] = {}
    for reading in sentinel:
        by_device.setdefault(reading.device_id, []).append(reading.median_ns)
    drifts = [
        (_drift(times_ns), len(times_ns))
        for times_ns in by_device.values()
        if len(times_ns) >= _FEWEST_READINGS
    ]
    drift, num_readings = max(drifts, default=(None, 0))
    is_enough = len(ratios) >= _FEWEST_ROWS
    return Noise(
        num_rows=len(ratios),
        relative_iqr=round(float(np.median(ratios)), 6) if is_enough else None,
        num_readings=num_readings,
        sentinel_drift=drift,
    )


def _drift(times_ns: Sequence[float]) -> float:
    low, high = np.percentile(times_ns, (10, 90))
    return float(high / low - 1) if low > 0 else 0.0
