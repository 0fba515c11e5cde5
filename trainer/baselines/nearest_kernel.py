"""The most similar train kernel as a predictor: a baseline that only memorises.

The nearest kernel is the train kernel whose source has the largest overlap of token runs (sequences
of five tokens, ``source_sets.py``), the measure that also defines families. The prediction is the
nearest kernel's time at launches of similar size, corrected by the ratio of the two launches'
rooflines (``roofline.py``). A model that is no better than this baseline only recognises kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from llmperf_common.families.source_sets import SCHEMA, SourceSets
from llmperf_common.features.features import feature_names
from llmperf_common.files.parquet_files import write_parquet
from llmperf_common.ids import sha256_hex
from trainer.baselines.roofline import roofline_log2_ns
from trainer.baselines.simple import (
    log2_time,
    read_model_json,
    weighted_median,
    write_model_json,
)
from trainer.data.foreign_files import read_table
from trainer.interface import MOST_LOG2_NS, Codes, FitData, Floats, Predicted, Rows

SOURCES_FILE = "sources.parquet"
LAUNCHES_FILE = "launches.parquet"

_SIZE_FEATURES = ("log2_work_items", "log2_local_items")
_COLUMNS = (*_SIZE_FEATURES, "log2_ns", "log2_roofline_ns")
_LAUNCHES = pa.schema([pa.field(name, pa.float32(), nullable=False) for name in _COLUMNS])
_SOURCES = pa.schema(
    [
        *SCHEMA,
        pa.field("source_sha256", pa.binary(), nullable=False),
        pa.field("num_launches", pa.int32(), nullable=False),
    ]
)
_NUM_NEAREST = 5
"""Number of launches whose median time is the prediction. A single launch could be an outlier; of
many launches, some would differ much in size."""
_MOST_PAIRS = 2**22
"""Maximum pairs of launches that are compared at once, to bound memory: arrays of 64 MiB."""
_MOST_MOVED_LOG2 = 2.0
"""Largest correction by the ratio of two launches' rooflines, in log2 (2 is a factor of 4). The
rooflines of two kernels may differ for a reason that does not affect the nearest kernel's time."""


@dataclass(slots=True, kw_only=True)
class NearestKernel:
    """The k train sources and the n launches of their kernels.

    Attributes:
        sources: token runs of the sources.
        sha256: hash of each source, in hexadecimal.
        sizes: log2 of the number of work-items of each launch and of each of its work-groups,
            sorted by source, shape (n, 2).
        log2_ns: log2 of the measured times in ns, shape (n,).
        roofline: log2 of the rooflines in ns, shape (n,).
        starts: first launch of each source, then n, shape (k + 1,).
        fallback_log2_ns: used in place of the roofline if no term of a launch's roofline is known.
        fallback_residual: median of log2(time / roofline), for kernels without a source or without
            any overlap.
    """

    sources: SourceSets
    sha256: tuple[str, ...]
    sizes: Floats
    log2_ns: Floats
    roofline: Floats
    starts: Codes
    fallback_log2_ns: float
    fallback_residual: float
    name: str = "nearest-kernel"
    refits: bool = True

    @classmethod
    def fit(cls, data: FitData) -> Self:
        """Store the sources and launches of the train part, without kernels that have no source."""
        texts = _sources(data.rows)
        fallback = weighted_median(data.log2_ns, data.weight)
        roofline = roofline_log2_ns(data.rows, fallback)
        numbers: dict[str, int] = {}
        number = np.full(len(texts), -1, dtype=np.int64)
        for row in np.unique(data.rows.kernel_row).tolist():
            if texts[row]:
                number[row] = numbers.setdefault(texts[row], len(numbers))
        owner = number[data.rows.kernel_row]
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        return cls(
            sources=SourceSets.of_sources(list(numbers)),
            sha256=tuple(sha256_hex(text.encode()) for text in numbers),
            sizes=_short(_sizes(data.rows)[order]),
            log2_ns=_short(data.log2_ns[order]),
            roofline=_short(roofline[order]),
            starts=np.searchsorted(owner[order], np.arange(len(numbers) + 1)),
            fallback_log2_ns=fallback,
            fallback_residual=weighted_median(data.log2_ns - roofline, data.weight),
        )

    def predict(self, rows: Rows) -> Predicted:
        """Return the nearest kernel's times at the nearest sizes, corrected by the rooflines."""
        roofline = roofline_log2_ns(rows, self.fallback_log2_ns)
        found = roofline + self.fallback_residual
        texts, sizes = _sources(rows), _sizes(rows)
        by_hash = {one: place for place, one in enumerate(self.sha256)}
        kernels, index = np.unique(rows.kernel_row, return_inverse=True)
        for position, kernel in enumerate(kernels.tolist()):
            nearest = self._nearest(texts[kernel], by_hash)
            if nearest is not None:
                inside = np.flatnonzero(index == position)
                num_own = int(self.starts[nearest + 1] - self.starts[nearest])
                step = max(1, _MOST_PAIRS // num_own)
                for first in range(0, len(inside), step):
                    rows_at = inside[first : first + step]
                    found[rows_at] = self._times(nearest, sizes[rows_at], roofline[rows_at])
        return Predicted(log2_ns=found)

    def _nearest(self, source: str, by_hash: dict[str, int]) -> int | None:
        if not source or not len(self.sources):
            return None
        same = by_hash.get(sha256_hex(source.encode()))
        if same is not None:
            return same
        overlaps = self.sources.overlaps(source)
        nearest = int(np.argmax(overlaps))
        return nearest if overlaps[nearest] > 0 else None

    def _times(self, source: int, sizes: Floats, roofline: Floats) -> Floats:
        """Return the median time of the launches of ``source`` nearest to each size, shape (m,)."""
        part = slice(int(self.starts[source]), int(self.starts[source + 1]))
        distance = np.abs(sizes[:, None, :] - self.sizes[part][None]).sum(axis=2)
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :_NUM_NEAREST]
        moved = roofline[:, None] - self.roofline[part][nearest]
        times = self.log2_ns[part][nearest] + np.clip(moved, -_MOST_MOVED_LOG2, _MOST_MOVED_LOG2)
        return np.asarray(np.median(times, axis=1), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write ``model.json``, ``sources.parquet`` and ``launches.parquet``."""
        digests = pa.array([bytes.fromhex(one) for one in self.sha256], pa.binary(32))
        counts = pa.array(np.diff(self.starts), pa.int32())
        sources = self.sources.table().append_column("source_sha256", digests)
        launches = pa.table(
            {
                name: pa.array(values.astype(np.float32))
                for name, values in zip(
                    _COLUMNS, (*self.sizes.T, self.log2_ns, self.roofline), strict=True
                )
            }
        )
        write_parquet(
            sources.append_column("num_launches", counts),
            folder / SOURCES_FILE,
            compression="zstd",
            use_dictionary=False,
        )
        write_parquet(launches, folder / LAUNCHES_FILE, compression="zstd")
        content = {
            "name": self.name,
            "fallback_log2_ns": self.fallback_log2_ns,
            "fallback_residual": self.fallback_residual,
        }
        write_model_json(folder, content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ValueError: A file is missing or damaged.
        """
        content = read_model_json(folder, "nearest-kernel")
        try:
            sources = read_table(folder / SOURCES_FILE, _SOURCES)
            launches = read_table(folder / LAUNCHES_FILE, _LAUNCHES)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ValueError(f"{folder}: {error}") from None
        columns = [launches.column(name).to_numpy().astype(np.float64) for name in _COLUMNS]
        counts = sources.column("num_launches").to_numpy().astype(np.int64)
        if counts.sum() != len(launches) or counts.min(initial=1) < 1:
            raise ValueError(
                f"{folder}: {LAUNCHES_FILE} has {len(launches)} launches, "
                f"but {SOURCES_FILE} counts {counts.sum()}"
            )
        if not all(np.all(np.abs(one) <= MOST_LOG2_NS) for one in columns):
            raise ValueError(f"{folder}: {LAUNCHES_FILE} has a size or time that is impossible")
        return cls(
            sources=SourceSets.of_table(sources),
            sha256=tuple(one.hex() for one in sources.column("source_sha256").to_pylist()),
            sizes=np.stack(columns[:2], axis=1),
            log2_ns=columns[2],
            roofline=columns[3],
            starts=np.concatenate([[0], np.cumsum(counts)]),
            fallback_log2_ns=log2_time(content, "fallback_log2_ns"),
            fallback_residual=log2_time(content, "fallback_residual"),
        )


def _sources(rows: Rows) -> list[str]:
    """Return the source of each kernels row; "" for a null."""
    if "source" not in rows.kernels.column_names:
        return [""] * len(rows.kernels)
    return [text or "" for text in rows.kernels.column("source").to_pylist()]


def _short(values: Floats) -> Floats:
    """Round to float32, as stored, so that a fitted and a loaded model are bit-identical."""
    return values.astype(np.float32).astype(np.float64)


def _sizes(rows: Rows) -> Floats:
    columns = [feature_names().index(name) for name in _SIZE_FEATURES]
    return np.nan_to_num(rows.features[:, columns])
