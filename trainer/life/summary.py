"""The result of a training, as the API returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from trainer.evaluation.scoring import notebook_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The result of a training.

    Attributes:
        folder: the run.
        model: name of the trained model.
        num_rows: number of rows by part.
        num_families: number of families by part.
        metrics: content of ``metrics.json``.
        notes: what a reader of the numbers must know (small parts, missing guarantees).
        seconds: wall time.
    """

    folder: Path
    model: str
    num_rows: Mapping[str, int]
    num_families: Mapping[str, int]
    metrics: Mapping[str, Any]
    notes: Sequence[str]
    seconds: float

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        title = f"{self.model} in {self.folder}, {self.seconds:.1f} s"
        return notebook_table(title, self.metrics["parts"]) + f"<ul>{notes}</ul>"
