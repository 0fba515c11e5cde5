"""A run on disk: the files of its folder, its stage, and how a run is found by name.

::

    RUN/
      config.json            written first: model, config tree, dataset, features, identity
      split.json             which families (kernels, launch configs) are in which part
      prepared/              language models only: tokenizer, tokens of the fit rows, model's spec
      fit/                   language models only: checkpoints, and loss and speed by step
      model/                 the model's files
      baselines/NAME/        the files of a baseline that is reported beside the model
      conformal.json  training_range.json  device.json  metrics.json  model_card.md
                             a shipped run has training_range.json.gz
      kernels.parquet        the fitted kernels: ids, arguments, analysis
      families.parquet       hashes of the token runs of every source that training used
      few_shot.json          how kernels differ from their predictions; absent without enough data
      predictions.parquet    predictions of every row that was not fitted
      published.json         written last: every file of the finished run with its size and hash
      kernel_factors.json    written by ``llmperf calibrate``: the factors of measured kernels
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llmperf_common.files.outputs import OutputTaken, folder_to_write
from llmperf_common.files.plain_files import is_inside
from llmperf_common.files.visible import shortened
from llmperf_common.store.tables.analysis_rows import ANALYSIS_COLUMNS, INPUTS_COLUMN
from trainer.data.foreign_files import MAX_JSON_BYTES, PACKED_SUFFIX, read_json_value
from trainer.errors import BadInput, RunExists
from trainer.run.shipped import shipped_models, shipped_run

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.json"
CONFORMAL_FILE = "conformal.json"
RANGE_FILE = "training_range.json"
PACKED_RANGE_FILE = f"{RANGE_FILE}{PACKED_SUFFIX}"
DEVICE_FILE = "device.json"
METRICS_FILE = "metrics.json"
KERNELS_FILE = "kernels.parquet"
FAMILIES_FILE = "families.parquet"
FEW_SHOT_FILE = "few_shot.json"
FACTORS_FILE = "kernel_factors.json"
PREDICTIONS_FILE = "predictions.parquet"
CARD_FILE = "model_card.md"
MODEL_FOLDER = "model"
BASELINES_FOLDER = "baselines"
PREPARED_FOLDER = "prepared"
PREPARING_FOLDER = ".preparing"
FIT_FOLDER = "fit"
CHECKPOINTS_FOLDER = f"{FIT_FOLDER}/checkpoints"
PUBLISHED_FILE = "published.json"
PUBLISHING_FOLDER = ".publishing"
_NAMES = frozenset(
    {
        CONFIG_FILE, SPLIT_FILE, CONFORMAL_FILE, RANGE_FILE, DEVICE_FILE, METRICS_FILE,
        KERNELS_FILE, PACKED_RANGE_FILE, FAMILIES_FILE, FEW_SHOT_FILE, FACTORS_FILE,
        PREDICTIONS_FILE, CARD_FILE, MODEL_FOLDER, BASELINES_FOLDER, PREPARED_FOLDER,
        PREPARING_FOLDER, FIT_FOLDER, PUBLISHED_FILE, PUBLISHING_FOLDER,
    }
)  # fmt: skip


def _beside(name: str) -> str:
    """Return the temporary name under which a JSON file is written."""
    return f".{name}.new"


NAMES = _NAMES | {_beside(name) for name in _NAMES if name.endswith(".json")}
"""All names that a run's folder can hold, including temporary files of a killed process."""
_FIRST_NAMES = frozenset({CONFIG_FILE, _beside(CONFIG_FILE), _beside(SPLIT_FILE)})
"""The names that a run's folder can hold before ``split.json`` is written."""


class Stage(StrEnum):
    """The stage that a run's training has reached."""

    EMPTY = "empty"
    STARTED = "started"
    """``config.json`` and ``split.json`` are written; the same command resumes the training."""
    PUBLISHED = "published"


RUNS_FOLDERS = (Path("runs"),)
"""Folders in which a run is looked up by name, relative to the working directory."""

KERNEL_COLUMNS = (
    "kernel_id",
    "name",
    "family_id",
    "suite",
    "device_class",
    "source_sha256",
    "args",
    *ANALYSIS_COLUMNS,
    INPUTS_COLUMN,
)
"""Columns of ``kernels.parquet``; ``predict`` fills missing arguments by the memory analysis."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON document atomically. Raises ValueError for NaN and infinities."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(_beside(path.name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(temporary, flags, 0o666), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read one JSON object of at most ``max_bytes``.

    Raises:
        BadInput: The file cannot be read, or its value is not an object.
    """
    try:
        content = read_json_value(path, max_bytes=max_bytes)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}; is this the folder of a finished training?") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: not a JSON object")
    return content


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``out`` when the block ends without an error.

    An old folder ``out`` is moved aside before the rename and deleted after it, so that ``out``
    never holds a part of a run.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.new-", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        old = None
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
            os.rename(out, old / "run")
        os.rename(temporary, out)
        if old is not None:
            shutil.rmtree(old)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def stage_of(folder: Path) -> Stage:
    """Return the stage of the run in ``folder``."""
    if not ((folder / CONFIG_FILE).is_file() and (folder / SPLIT_FILE).is_file()):
        return Stage.EMPTY
    return Stage.PUBLISHED if (folder / PUBLISHED_FILE).is_file() else Stage.STARTED


def _was_begun(folder: Path) -> bool:
    """Return whether a training died before it wrote ``split.json``: nothing is worth keeping."""
    there = set(os.listdir(folder))
    if not there <= _FIRST_NAMES or any((folder / name).is_symlink() for name in there):
        return False
    if CONFIG_FILE not in there:
        return True
    try:
        return "config_hash" in read_json(folder / CONFIG_FILE)
    except BadInput:
        return False


def check_free(out: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Path:
    """Check that a run may be written to ``out``; return the folder with symbolic links resolved.

    Args:
        out: the folder to write.
        identity: ``config_hash`` and ``dataset_id`` of the new run. A folder that holds a run with
            the same identity is accepted: the training resumes, or the finished run is shown.
        overwrite: accept a folder that holds another run. Other folders are never accepted.

    Raises:
        OutputTaken: ``out`` holds something other than a run (``RunExists``: another run).
    """
    target = folder_to_write(
        out,
        names=NAMES,
        is_ours=lambda folder: stage_of(folder) is not Stage.EMPTY or _was_begun(folder),
        what="run",
    )
    _refuse_links(target, out)
    if overwrite or stage_of(target) is Stage.EMPTY or has_identity(target, identity):
        return target
    try:
        found = read_json(target / CONFIG_FILE)
    except BadInput:
        found = {}
    same_config = found.get("config_hash") == identity["config_hash"]
    what = "the same config on other data" if same_config else "another config or other data"
    raise RunExists(
        f"--out {out}: holds another run ({what}; a dataset that has grown is other data): name a "
        "new folder, or replace that run with --set train.overwrite=true"
    )


def _refuse_links(target: Path, out: Path) -> None:
    """Reject links out of the folder, because a training writes and deletes files in it.

    Raises:
        OutputTaken: A file in ``target`` is a link that leads out of ``target``.
    """
    for path in target.rglob("*"):
        if path.is_symlink() and not is_inside(path, target):
            raise OutputTaken(
                f"--out {out}: {path.relative_to(target)} is a link that leads out of the run: "
                "copy the run with the targets of its links (cp -rL), or name a new folder"
            )


def has_identity(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Return whether ``config.json`` in ``folder`` has all values of ``identity``."""
    try:
        found = read_json(folder / CONFIG_FILE)
    except BadInput:
        return False
    return all(found.get(key) == value for key, value in identity.items())


def known_runs(search: tuple[Path, ...] = RUNS_FOLDERS) -> list[Path]:
    """Return the finished runs at ``NAME`` or ``NAME/model`` in the folders ``search``, sorted."""
    return sorted(
        path.parent
        for root in search
        for pattern in (f"*/{CONFIG_FILE}", f"*/model/{CONFIG_FILE}")
        for path in root.glob(pattern)
        if stage_of(path.parent) is Stage.PUBLISHED
    )


def resolve_run(name: str | Path, search: tuple[Path, ...] = RUNS_FOLDERS) -> Path:
    """Find a run by path or by name.

    Args:
        name: a folder, or the name of a run in one of ``search`` (at ``NAME`` or ``NAME/model``),
            or the name of a model that comes with the package.
        search: folders that hold runs.

    Raises:
        BadInput: There is no run of that name (the message lists the runs), or it is unfinished.
    """
    candidates = [
        Path(name),
        *(root / name for root in search),
        *(root / name / "model" for root in search),
    ]
    try:
        stages = {candidate: stage_of(candidate) for candidate in candidates}
    except OSError as error:
        raise BadInput(f"--model {shortened(str(name))}: {error.strerror}: name a run") from None
    for candidate, stage in stages.items():
        if stage is Stage.PUBLISHED:
            return candidate
    for candidate, stage in stages.items():
        if stage is Stage.STARTED:
            raise BadInput(
                f"--model {name}: the training of {candidate} is not finished; run the same "
                "`llmperf train` command again, which resumes it"
            )
    shipped = shipped_run(str(name))
    if shipped is not None:
        return shipped
    known = ", ".join(map(str, known_runs(search)))
    there = f"runs here: {known}" if known else "runs here: none"
    there += "; `llmperf train` makes one"
    if shipped_models():
        there += f"; llmperf brings {', '.join(shipped_models())}"
    raise BadInput(f"--model {name}: no trained run; {there}")


def fitted_kernels(kernels: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """Return ``KERNEL_COLUMNS`` of the kernels that were fitted; ``rows`` may have duplicates."""
    return kernels.take(pa.array(np.unique(rows))).select(list(KERNEL_COLUMNS))
