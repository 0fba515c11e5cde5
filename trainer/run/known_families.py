"""The sources that a run knows and their families, to find near duplicates in other datasets.

Owns ``families.parquet``. The file has every kernel of the usable rows and not only the fitted
ones: a near duplicate of a kernel that selected the model or calibrated its intervals is not a fair
test either. It holds hashes of token runs (``source_sets.py``) and not the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.families.families import MIN_JACCARD
from llmperf_common.families.source_sets import SCHEMA, SourceSets
from llmperf_common.files.parquet_files import write_parquet
from trainer.data.dataset import TrainingData
from trainer.data.foreign_files import read_table
from trainer.run.folder import FAMILIES_FILE

_COLUMNS = pa.schema(
    [
        pa.field("source_sha256", pa.binary(), nullable=False),
        pa.field("family_id", pa.string(), nullable=False),
        pa.field("fitted", pa.bool_(), nullable=False),
        *SCHEMA,
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFamilies:
    """The n distinct sources of a run.

    Attributes:
        sources: their token runs.
        sha256: hash of each source, in hexadecimal.
        family_id: family of each source in the run's dataset.
        fitted: whether a kernel of the source was fitted, shape (n,).
    """

    sources: SourceSets
    sha256: tuple[str, ...]
    family_id: tuple[str, ...]
    fitted: npt.NDArray[np.bool_]

    @classmethod
    def of_data(cls, data: TrainingData, fitted_rows: npt.NDArray[np.intp]) -> Self:
        """Take the kernels of the usable rows; those without a source are left out.

        Args:
            data: the dataset of the run.
            fitted_rows: positions of the rows that were fitted.
        """
        kernels = data.rows.kernels
        texts = kernels.column("source").to_pylist()
        hashes = kernels.column("source_sha256").to_pylist()
        families = kernels.column("family_id").to_pylist()
        fitted = set(np.unique(data.rows.kernel_row[fitted_rows]).tolist())
        found: dict[str, tuple[str, str, bool]] = {}
        for row in np.unique(data.rows.kernel_row).tolist():
            if texts[row]:
                before = found.get(hashes[row])
                is_fitted = row in fitted or (before is not None and before[2])
                found[hashes[row]] = (texts[row], families[row], is_fitted)
        return cls(
            sources=SourceSets.of_sources([text for text, _, _ in found.values()]),
            sha256=tuple(found),
            family_id=tuple(family for _, family, _ in found.values()),
            fitted=np.array([flag for _, _, flag in found.values()], dtype=bool),
        )

    def like(self, source: str) -> list[int]:
        """Return the positions of the sources that ``source`` is a near duplicate of."""
        return np.flatnonzero(self.sources.overlaps(source) >= MIN_JACCARD).tolist()

    def save(self, folder: Path) -> None:
        """Write ``families.parquet`` into ``folder``."""
        table = self.sources.table()
        columns = {
            "source_sha256": pa.array([bytes.fromhex(one) for one in self.sha256], pa.binary(32)),
            "family_id": pa.array(self.family_id, pa.string()),
            "fitted": pa.array(self.fitted),
        }
        for place, (name, values) in enumerate(columns.items()):
            table = table.add_column(place, name, values)
        # Hashes hardly repeat, so a dictionary encoding would make the file larger.
        write_parquet(table, folder / FAMILIES_FILE, compression="zstd", use_dictionary=False)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read ``families.parquet`` of a run; return None if an earlier release made the run.

        Raises:
            ValueError: The file is damaged.
        """
        path = folder / FAMILIES_FILE
        if not path.exists():
            return None
        try:
            table = read_table(path, _COLUMNS)
            return cls(
                sources=SourceSets.of_table(table),
                sha256=tuple(one.hex() for one in table.column("source_sha256").to_pylist()),
                family_id=tuple(table.column("family_id").to_pylist()),
                fitted=table.column("fitted").to_numpy(),
            )
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ValueError(f"{path}: {error}") from None
