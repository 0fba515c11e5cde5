"""Score a trained run on its own dataset or on another one.

Decides which rows an evaluation may use. A family of the dataset counts as seen if one of its
kernels is a near duplicate of a fitted kernel, whatever the family ids are
(``joined_families.py``). An evaluation of rows of seen families fails without ``allow_seen``; with
``allow_seen``, every output file carries a stamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmperf_common.config import ConfigError
from llmperf_common.files.outputs import folder_to_write, holds_json
from llmperf_common.files.parquet_files import write_parquet
from llmperf_common.statistics.splits import Part, SplitKind, assign_parts
from trainer.data.dataset import Texts, TrainingData, with_activity
from trainer.errors import BadInput, SeenRows
from trainer.evaluation.joined_families import Joined, check_sources, join_families
from trainer.evaluation.measured_kernels import with_factors, without_measured
from trainer.evaluation.scoring import (
    context,
    cut_notes,
    markdown_table,
    meets_slice_bar,
    notebook_table,
    predict_rows,
    predictions_table,
    score_parts,
)
from trainer.run.folder import (
    METRICS_FILE,
    PREDICTIONS_FILE,
    new_folder,
    write_json,
)
from trainer.run.harness import harness_notes
from trainer.run.loaded import LoadedRun

TABLE_FILE = "table.md"
ALL = "all"
SPLIT_NAMES = (*(part.value for part in Part), ALL)
"""The values of ``--split``."""

_STAMP = "SEEN: these metrics include rows of families that the model was trained on."


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """The result of an evaluation.

    Attributes:
        folder: the folder written.
        split: the part that was scored, or "all".
        num_rows: rows scored.
        seen: whether these rows include families that the model was trained on.
        metrics: content of ``metrics.json``.
        table: the metrics of each part and model as a Markdown table.
        notes: what a reader of the numbers must know.
    """

    folder: Path
    split: str
    num_rows: int
    seen: bool
    metrics: Mapping[str, Any]
    table: str
    notes: Sequence[str] = ()

    def _repr_html_(self) -> str:
        title = f"evaluation of {self.metrics['model']} on {self.split}: {self.num_rows:,} rows"
        stamp = f"<p><b>{_STAMP}</b></p>" if self.seen else ""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return stamp + notebook_table(title, self.metrics["parts"]) + notes


def evaluate(
    run: LoadedRun, data: TrainingData, split: str, out: Path, *, allow_seen: bool = False
) -> EvaluationSummary:
    """Predict and score the rows of one part, and write the results to ``out``.

    Writes ``predictions.parquet``, ``metrics.json`` and ``table.md``.

    Args:
        run: the trained run.
        data: the dataset; families unknown to the run belong to ``test``.
        split: one of ``SPLIT_NAMES``.
        out: a folder; new, empty, or an earlier evaluation.
        allow_seen: also score rows of families that the model was trained on (``train``,
            ``seen_configs``, ``all``), and stamp the output files.

    Raises:
        ConfigError: ``split`` is not in ``SPLIT_NAMES``.
        SeenRows: The model was trained on families of the part, and ``allow_seen`` is false.
        BadInput: The part has no row, a row of a device class unknown to the run, a kernel without
            a source, or only rows from which their kernels' factors were measured.
        OutputTaken: ``out`` holds something other than an evaluation.
    """
    if split not in SPLIT_NAMES:
        raise ConfigError(f"--split {split!r} is not one of {', '.join(SPLIT_NAMES)}")
    _checked(out)
    data, row_notes = with_activity(data, run.config.train.rows)
    joined = join_families(run, data)
    parts, seen = evaluation_parts(run, data, joined)
    wanted = np.ones(len(data), dtype=bool) if split == ALL else parts == split
    index = np.flatnonzero(wanted)
    if len(index) == 0:
        raise BadInput(
            f"--split {split}: the dataset has no ok row of this part; it has "
            + ", ".join(sorted(set(parts.tolist())))
        )
    _check_devices(run, data, index)
    if run.split.kind is not SplitKind.CONFIG:
        check_sources(data, index)
    num_seen = int(np.sum(seen[index]))
    if num_seen and not allow_seen:
        raise SeenRows(
            f"--split {split}: {num_seen} of {len(index)} rows are of families that the model was "
            "trained on; choose --split test, or pass --allow-seen, which marks the table"
        )
    kept = without_measured(run, data, index)
    index = kept.index
    first, *others = predict_rows(
        data, index, {run.name: run.model, **run.baselines}, run.conformal, where=str(run.folder)
    )
    own, said = with_factors(run, data, first)
    predictions = [*own, *others]
    notes = [
        *dict.fromkeys((*run.notes, *row_notes)),
        *harness_notes(run.harness_version, data.identity),
        *joined.notes,
        *said,
        *cut_notes(first),
    ]
    if kept.num_left_out:
        notes.append(
            f"{kept.num_left_out} rows are not scored: kernel factors were measured from these rows"
        )
    metrics: dict[str, Any] = {
        "schema": 1,
        "model": run.name,
        "run": str(run.folder),
        "split": split,
        "seen": bool(num_seen),
        "stamp": _STAMP if num_seen else None,
        "notes": notes,
        "interval_level": run.conformal.level,
        "parts": score_parts(data, parts, predictions, run.config.judge),
        **context(data),
    }
    metrics["meets_slice_bar"] = meets_slice_bar(metrics, run.name)
    table = (f"**{_STAMP}**\n\n" if num_seen else "") + markdown_table(metrics["parts"])
    table += "".join(f"\n{note}\n" for note in notes)
    with new_folder(_checked(out)) as folder:
        scored = predictions_table(data, parts, predictions)
        if num_seen:
            scored = scored.replace_schema_metadata({"llmperf.stamp": _STAMP})
        write_parquet(scored, folder / PREDICTIONS_FILE)
        write_json(folder / METRICS_FILE, metrics)
        (folder / TABLE_FILE).write_text(table, encoding="utf-8")
    return EvaluationSummary(
        folder=out,
        split=split,
        num_rows=len(index),
        seen=bool(num_seen),
        metrics=metrics,
        table=table,
        notes=notes,
    )


def evaluation_parts(
    run: LoadedRun, data: TrainingData, joined: Joined
) -> tuple[Texts, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return each row's part and whether the model was trained on its family, both shape (n,).

    A row whose family (or kernel) is not in the run's split gets the first part that applies:
    ``seen_configs`` if a kernel of its family is a near duplicate of a fitted kernel; the part of
    those kernels of the run that are near duplicates of its family's kernels; ``test``.
    """
    kernel_ids = data.texts("kernel_id")
    parts = assign_parts(
        run.split,
        family_ids=data.family_id.tolist(),
        kernel_ids=kernel_ids.tolist(),
        sample_ids=data.texts("sample_id").tolist(),
    )
    fitted = np.isin(kernel_ids, run.kernels.column("kernel_id").to_pylist())
    seen = np.isin(data.family_id, sorted(joined.seen))
    if run.split.kind is SplitKind.CONFIG:
        # A by-config split tests on fitted kernels on purpose, so only fitted rows count as seen.
        return np.where(fitted, parts, Part.TEST.value), fitted & (parts == Part.TRAIN)
    unnamed = parts == ""
    parts = np.where(unnamed & seen, Part.SEEN_CONFIGS.value, parts)
    if np.any(unnamed & ~seen):
        of_family = [joined.parts.get(one, Part.TEST).value for one in data.family_id.tolist()]
        parts = np.where(unnamed & ~seen, of_family, parts)
    if run.split.kind is SplitKind.KERNEL:
        # The paper's split puts near duplicates into several parts, but its test part is not seen.
        seen &= np.isin(parts, [Part.TRAIN.value, Part.SEEN_CONFIGS.value])
    return parts, seen


def _check_devices(run: LoadedRun, data: TrainingData, index: npt.NDArray[np.intp]) -> None:
    """Raise BadInput for rows of a device class that the model was not trained on."""
    classes, counts = np.unique(data.texts("device_class")[index], return_counts=True)
    others = [
        f"{name} ({count:,} rows)"
        for name, count in zip(classes.tolist(), counts.tolist(), strict=True)
        if name not in run.devices
    ]
    if others:
        raise BadInput(
            f"the dataset has rows of {', '.join(others)}; the model was trained on "
            f"{', '.join(sorted(run.devices))}: evaluate it on data of these device classes, or "
            "train a model on data of the others"
        )


def _checked(out: Path) -> Path:
    """Return the folder to write: new, empty, or with files of an earlier evaluation only."""
    return folder_to_write(
        out,
        names=(PREDICTIONS_FILE, METRICS_FILE, TABLE_FILE),
        is_ours=lambda folder: holds_json(
            folder / METRICS_FILE, ("schema", "model", "split", "parts")
        ),
        what="evaluation",
    )
