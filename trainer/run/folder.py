"""A trained run on disk: what is in the folder, written all at once or not at all, read back whole.

::

    RUN/
      config.json            what made it: model, config tree and hash, dataset, features, versions, counts
      model/                 the model's own files          baselines/NAME/   those reported beside it
      split.json  conformal.json  training_range.json  device.json  metrics.json
      kernels.parquet        the kernels fitted: ids, arguments, analysis
      families.parquet       token runs, as hashes, of every source that training looked at
      few_shot.json          how kernels differ from their predictions, where that could be learnt
      predictions.parquet    every row that was not fitted          model_card.md
      kernel_factors.json    written later by ``llmperf calibrate``: the factors of measured kernels
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llmperf_common.outputs import folder_to_write
from llmperf_common.store.analysis_rows import ANALYSIS_COLUMNS
from trainer.errors import BadInput, RunExists

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.json"
CONFORMAL_FILE = "conformal.json"
RANGE_FILE = "training_range.json"
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
_NAMES = frozenset(
    {
        CONFIG_FILE, SPLIT_FILE, CONFORMAL_FILE, RANGE_FILE, DEVICE_FILE, METRICS_FILE, KERNELS_FILE,
        FAMILIES_FILE, FEW_SHOT_FILE, FACTORS_FILE, PREDICTIONS_FILE, CARD_FILE, MODEL_FOLDER, BASELINES_FOLDER,
    }
)  # fmt: skip
"""All that a run's folder holds."""

RUNS_FOLDERS = (Path("runs"),)
"""Where a run's name is looked for, relative to the working directory."""

KERNEL_COLUMNS = (
    "kernel_id",
    "name",
    "family_id",
    "suite",
    "device_class",
    "source_sha256",
    "args",
    *ANALYSIS_COLUMNS,
)
"""What a run keeps of the kernels that were fitted, their memory analysis included: ``predict`` plans by it."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON document; NaN is refused rather than written."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        BadInput: It cannot be read or is no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path}: {error}; is this the folder of a finished training?") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: not a JSON object")
    return content


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes ``out`` when the block ends without an error.

    What was at ``out`` is moved aside first and deleted after: there is no moment with half a run.
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


def check_free(out: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Path:
    """Return the folder to write, symbolic links followed, once it is certain that ``out`` may be written.

    Args:
        out: the folder wanted.
        identity: ``config_hash`` and ``dataset_id`` of the run to come: a folder that holds a run with the
            same is the same command's and may be replaced.
        overwrite: replace another run as well (never a folder that is no run).

    Raises:
        OutputTaken: It holds something that is no run (``RunExists``: another run).
    """
    target = folder_to_write(out, names=_NAMES, is_ours=_is_run, what="run")
    if not (target / CONFIG_FILE).exists():
        return target  # new or empty
    try:
        found = read_json(target / CONFIG_FILE)
    except BadInput:
        found = {}
    same = all(found.get(key) == value for key, value in identity.items())
    if not same and not overwrite:
        raise RunExists(
            f"--out {out}: holds another run (other data or config); name a new folder, "
            "or replace it with --set train.overwrite=true"
        )
    return target


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and (folder / SPLIT_FILE).is_file()


def known_runs(search: tuple[Path, ...] = RUNS_FOLDERS) -> list[Path]:
    """Return the runs in ``search``, each run itself or the ``model`` folder of one, sorted."""
    return sorted(
        path.parent
        for root in search
        for pattern in (f"*/{CONFIG_FILE}", f"*/model/{CONFIG_FILE}")
        for path in root.glob(pattern)
        if _is_run(path.parent)
    )


def resolve_run(name: str | Path, search: tuple[Path, ...] = RUNS_FOLDERS) -> Path:
    """Find a run by path or by name.

    Args:
        name: a folder, or the name of a run in one of ``search`` (itself or its ``model`` folder).
        search: folders that hold runs.

    Raises:
        BadInput: There is no run of that name; the message lists those there are.
    """
    candidates = [
        Path(name),
        *(root / name for root in search),
        *(root / name / "model" for root in search),
    ]
    for candidate in candidates:
        if _is_run(candidate):
            return candidate
    known = ", ".join(map(str, known_runs(search)))
    there = f"runs here: {known}" if known else "none is here"
    there += "; `llmperf train` makes one"
    raise BadInput(f"--model {name}: no trained run; {there}")


def fitted_kernels(kernels: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """Return the ``KERNEL_COLUMNS`` of the kernels rows that were fitted; ``rows`` may repeat."""
    return kernels.take(pa.array(np.unique(rows))).select(list(KERNEL_COLUMNS))
