"""The most similar train kernel as a predictor: what memory alone achieves.

A kernel is looked up by its source: the train kernel whose token runs overlap most (``source_sets.py``, the measure
that families are made by). Its law is its residual over the roofline at the launches nearest in size. A model that is no
better than this has learnt no more than to recognise kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.features import feature_names
from llmperf_common.ids import sha256_hex
from llmperf_common.source_sets import SourceSets
from trainer.baselines.roofline import roofline_log2_ns
from trainer.baselines.simple import read_model_json, weighted_median, write_model_json
from trainer.interface import Codes, FitData, Floats, Predicted, Rows

SOURCES_FILE = "sources.parquet"
LAUNCHES_FILE = "launches.parquet"

_SIZE_FEATURES = ("log2_work_items", "log2_local_items")
_NUM_NEAREST = 5
"""Launches whose median residual is taken: one may be an outlier, many reach far in size."""


@dataclass(slots=True, kw_only=True)
class NearestKernel:
    """The k train sources and the n launches of their kernels.

    Attributes:
        sources: token runs of the sources.
        sha256: of each source.
        sizes: log2 of the work-items and of a group's, by launch, shape (n, 2); launches of a source are together.
        residual: log2(measured / roofline), shape (n,).
        starts: where each source begins among the launches, shape (k + 1,).
        fallback_log2_ns: stands in for a roofline without a known term.
        fallback_residual: the median residual: for a kernel without a source, or like no other.
    """

    sources: SourceSets
    sha256: tuple[str, ...]
    sizes: Floats
    residual: Floats
    starts: Codes
    fallback_log2_ns: float
    fallback_residual: float
    name: str = "nearest-kernel"
    refits: bool = True

    @classmethod
    def fit(cls, data: FitData) -> Self:
        """Remember the sources and launches of the train part; kernels without a source are left out."""
        texts = _sources(data.rows)
        fallback = weighted_median(data.log2_ns, data.weight)
        residual = data.log2_ns - roofline_log2_ns(data.rows, fallback)
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
            sizes=_sizes(data.rows)[order].astype(np.float32).astype(np.float64),
            residual=residual[order].astype(np.float32).astype(np.float64),
            starts=np.searchsorted(owner[order], np.arange(len(numbers) + 1)),
            fallback_log2_ns=fallback,
            fallback_residual=weighted_median(residual, data.weight),
        )

    def predict(self, rows: Rows) -> Predicted:
        """Return the roofline plus the nearest kernel's residual at the nearest sizes."""
        base = roofline_log2_ns(rows, self.fallback_log2_ns)
        found = np.full(len(rows), self.fallback_residual)
        texts, sizes = _sources(rows), _sizes(rows)
        by_hash = {one: place for place, one in enumerate(self.sha256)}
        kernels, index = np.unique(rows.kernel_row, return_inverse=True)
        for position, kernel in enumerate(kernels.tolist()):
            nearest = self._nearest(texts[kernel], by_hash)
            if nearest is not None:
                inside = np.flatnonzero(index == position)
                found[inside] = self._residuals(nearest, sizes[inside])
        return Predicted(log2_ns=base + found)

    def _nearest(self, source: str, by_hash: dict[str, int]) -> int | None:
        if not source or not len(self.sources):
            return None
        same = by_hash.get(sha256_hex(source.encode()))
        if same is not None:
            return same
        overlaps = self.sources.overlaps(source)
        nearest = int(np.argmax(overlaps))
        return nearest if overlaps[nearest] > 0 else None

    def _residuals(self, source: int, sizes: Floats) -> Floats:
        """The median residual of the launches of ``source`` nearest to each of ``sizes`` (shape (m, 2))."""
        part = slice(int(self.starts[source]), int(self.starts[source + 1]))
        distance = np.abs(sizes[:, None, :] - self.sizes[part][None]).sum(axis=2)
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :_NUM_NEAREST]
        return np.asarray(np.median(self.residual[part][nearest], axis=1), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write ``model.json``, ``sources.parquet`` and ``launches.parquet``."""
        digests = pa.array([bytes.fromhex(one) for one in self.sha256], pa.binary(32))
        counts = pa.array(np.diff(self.starts), pa.int32())
        sources = self.sources.table().append_column("source_sha256", digests)
        launches = pa.table(
            {
                name: pa.array(values.astype(np.float32))
                for name, values in zip(
                    (*_SIZE_FEATURES, "residual_log2"), (*self.sizes.T, self.residual), strict=True
                )
            }
        )
        pq.write_table(
            sources.append_column("num_launches", counts),
            folder / SOURCES_FILE,
            compression="zstd",
            use_dictionary=False,
        )
        pq.write_table(launches, folder / LAUNCHES_FILE, compression="zstd")
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
            sources = pq.read_table(folder / SOURCES_FILE)
            launches = pq.read_table(folder / LAUNCHES_FILE)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{folder}: {error}") from None
        columns = [
            launches.column(name).to_numpy().astype(np.float64)
            for name in (*_SIZE_FEATURES, "residual_log2")
        ]
        counts = sources.column("num_launches").to_numpy().astype(np.int64)
        if counts.sum() != len(launches):
            raise ValueError(f"{folder}: {len(launches)} launches, the sources name {counts.sum()}")
        return cls(
            sources=SourceSets.of_table(sources),
            sha256=tuple(one.hex() for one in sources.column("source_sha256").to_pylist()),
            sizes=np.stack(columns[:2], axis=1),
            residual=columns[2],
            starts=np.concatenate([[0], np.cumsum(counts)]),
            fallback_log2_ns=float(content["fallback_log2_ns"]),
            fallback_residual=float(content["fallback_residual"]),
        )


def _sources(rows: Rows) -> list[str]:
    """The source of each kernels row, "" where there is none."""
    if "source" not in rows.kernels.column_names:
        return [""] * len(rows.kernels)
    return [text or "" for text in rows.kernels.column("source").to_pylist()]


def _sizes(rows: Rows) -> Floats:
    columns = [feature_names().index(name) for name in _SIZE_FEATURES]
    return np.nan_to_num(rows.features[:, columns])
