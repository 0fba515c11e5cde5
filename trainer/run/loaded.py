"""Loading of a finished run from its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llmperf_common.config import ConfigError
from llmperf_common.features.features import WORK_FEATURE, unknown_features
from llmperf_common.features.launch_columns import device_from_mapping
from llmperf_common.files.plain_files import UnfitFileError, read_plain
from llmperf_common.records import Device
from llmperf_common.statistics.conformal import Conformal
from llmperf_common.statistics.splits import Split
from llmperf_common.store.tables.analysis_rows import ANALYSIS_COLUMNS, INPUTS_COLUMN
from trainer.config import TrainConfig
from trainer.data.foreign_files import (
    MAX_JSON_BYTES,
    MEND,
    PACKED_SUFFIX,
    check_files,
    read_table,
    reading,
)
from trainer.data.training_range import MAX_FILE_BYTES as MAX_RANGE_BYTES
from trainer.data.training_range import TrainingRange
from trainer.errors import BadInput
from trainer.interface import Predicted, Predictor, Rows
from trainer.registry import load_model
from trainer.run.answers import check_spread, checked_prediction
from trainer.run.folder import (
    BASELINES_FOLDER,
    CONFIG_FILE,
    CONFORMAL_FILE,
    DEVICE_FILE,
    FEW_SHOT_FILE,
    KERNELS_FILE,
    MODEL_FOLDER,
    PACKED_RANGE_FILE,
    PUBLISHED_FILE,
    RANGE_FILE,
    SPLIT_FILE,
    Stage,
    read_json,
    stage_of,
)
from trainer.run.harness import recorded_version
from trainer.run.kernel_factors import FewShot, KernelFactors

LOCAL_ITEMS = "log2_local_items"
"""Feature whose range the choice of the best local size needs: log2 of the work-group size."""

_KERNELS = pa.schema(
    [
        pa.field(name, pa.string(), nullable=False)
        for name in ("kernel_id", "family_id", "source_sha256")
    ]
)
"""Columns that are read of ``kernels.parquet``, besides those of the memory analysis."""
_LONGEST_ID = 64
"""Maximum bytes of a text of these columns: a SHA-256 has 64 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A run loaded from its folder.

    Attributes:
        folder: folder of the run.
        name: the model's name.
        model: the model.
        baselines: the baselines by name; each is loaded at its first use.
        config: the config of the training.
        split: the split of the training.
        conformal: widths of the intervals.
        known: the ranges of the fit rows' features.
        devices: one device of each device class, by device class.
        kernels: ids, families and source hashes of the kernels that were fitted, with their
            memory analyses if the run stores them.
        few_shot: distribution of kernels' factors; None if an earlier release made the run or
            the run had too few kernels.
        factors: factors of measured kernels (``llmperf calibrate``), or None.
        notes: notes that apply to every evaluation of the run.
        marker: content of ``published.json``, read before the model; a later training changes it.
        harness_version: harness version of the fit rows; None if the run does not record it.
    """

    folder: Path
    name: str
    model: Predictor
    baselines: Mapping[str, Predictor]
    config: TrainConfig
    split: Split
    conformal: Conformal
    known: TrainingRange
    devices: Mapping[str, Device]
    kernels: pa.Table
    few_shot: FewShot | None = None
    factors: KernelFactors | None = None
    notes: tuple[str, ...] = ()
    marker: bytes | None = None
    harness_version: int | None = None

    @property
    def reads_work(self) -> bool:
        """Whether the fit rows had launches with counted work, so that the model can use it."""
        if WORK_FEATURE not in self.known.names:
            return False
        return bool(np.isfinite(self.known.low[self.known.names.index(WORK_FEATURE)]))

    @property
    def where(self) -> str:
        """Names the run and its model in messages."""
        return f"{self.folder}: model {self.name}"

    def predict(self, rows: Rows) -> Predicted:
        """Return the model's prediction of the rows, checked.

        Raises:
            BadInput: A time or a spread is not a finite number, or the intervals need a spread.
        """
        said = checked_prediction(self.model, rows, self.where)
        check_spread(said, self.conformal.by_spread, self.where)
        return said


class _Baselines(Mapping[str, Predictor]):
    """A mapping that loads a baseline at its first use: some are large; ``predict`` uses none."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._models: dict[str, Predictor] = {}

    def __getitem__(self, name: str) -> Predictor:
        if name not in self._models:
            self._models[name] = load_model(name, self._folders[name])
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


def load_run(folder: Path) -> LoadedRun:
    """Load a run.

    Raises:
        BadInput: A file is missing or damaged, or the run needs features that this release does not
            compute. Features added since the training are no problem, because a model selects its
            features by name.
        MissingExtra: The model needs a library that is not installed.
    """
    with reading(f"{folder}", MEND):
        check_files(folder)
        marker = published_marker(folder)
        content = read_json(folder / CONFIG_FILE)
        _check_whole(folder)
        lost = unknown_features(map(str, content.get("features", ())))
    if lost:
        raise BadInput(
            f"{folder}: trained with features that this release does not compute "
            f"({', '.join(lost[:3])}); train it again"
        )
    with _as_a_run(folder), reading(f"{folder}: not a readable run: a file of it", MEND):
        name = str(content["model"])
        config = TrainConfig.from_mapping(content["config"])
        with _named(folder / CONFIG_FILE):
            if name != config.model:
                raise ValueError(
                    f"its model is {name!r:.60}, but its config is one of {config.model!r:.60}"
                )
            notes = tuple(origin_notes(content))
        with _named(folder / SPLIT_FILE):
            split = Split.from_json(read_json(folder / SPLIT_FILE))
        with _named(folder / CONFORMAL_FILE):
            conformal = Conformal.from_json(read_json(folder / CONFORMAL_FILE))
        known = _training_range(folder)
        devices = _devices(folder / DEVICE_FILE)
        kernels = read_table(
            folder / KERNELS_FILE,
            _KERNELS,
            others=(*ANALYSIS_COLUMNS, INPUTS_COLUMN),
            max_text_bytes=_LONGEST_ID,
        )
        learnt = folder / FEW_SHOT_FILE
        with _named(learnt):
            few_shot = FewShot.from_json(read_json(learnt)) if learnt.exists() else None
    baselines = folder / BASELINES_FOLDER
    return LoadedRun(
        folder=folder,
        name=name,
        model=load_model(name, folder / MODEL_FOLDER),
        baselines=_Baselines({item.name: item for item in sorted(baselines.glob("*"))}),
        config=config,
        split=split,
        conformal=conformal,
        known=known,
        devices=devices,
        kernels=kernels,
        few_shot=few_shot,
        factors=KernelFactors.load(folder),
        notes=notes,
        marker=marker,
        harness_version=recorded_version(content),
    )


def _training_range(folder: Path) -> TrainingRange:
    """Read the ranges of a run, packed or not."""
    packed = folder / PACKED_RANGE_FILE
    path = packed if packed.exists() else folder / RANGE_FILE
    with _named(path):
        known = TrainingRange.from_json(read_json(path, max_bytes=MAX_RANGE_BYTES))
        lost = unknown_features(known.names)
        if lost:
            raise ValueError(f"this release does not compute the feature {lost[0]!r:.60}")
        if LOCAL_ITEMS not in known.names:
            raise ValueError(f"it has no range of the feature {LOCAL_ITEMS}")
    return known


def _devices(path: Path) -> dict[str, Device]:
    """Read the first device of each device class."""
    with _named(path):
        records = read_json(path).get("devices")
        if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
            raise ValueError("it has no list of devices")
        if not records:
            raise ValueError("it lists no device")
        devices: dict[str, Device] = {}
        for record in map(device_from_mapping, records):
            devices.setdefault(record.device_class, record)
    return devices


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in the message of a ValueError, and say what to do."""
    try:
        yield
    except BadInput:
        raise
    except ValueError as error:
        name = path.name.removesuffix(PACKED_SUFFIX)
        raise BadInput(f"{path}: {str(error).removeprefix(f'{name}: ')[:500]}; {MEND}") from None


def published_marker(folder: Path) -> bytes | None:
    """Return the content of the run's marker, with its files' hashes; None without a marker.

    Raises:
        BadInput: The marker is not a regular file, or it is too large.
        OSError: The marker cannot be read.
    """
    path = folder / PUBLISHED_FILE
    try:
        return read_plain(path, max_bytes=MAX_JSON_BYTES) if path.exists() else None
    except UnfitFileError as error:
        raise BadInput(f"{error}; copy the run again, or train it anew") from None


def origin_notes(content: Mapping[str, Any]) -> list[str]:
    """Return a note on the initial weights of a codegen or auto backbone, from ``config.json``.

    Raises:
        ValueError: The record of the initial weights is none of a checkpoint.
    """
    config = content.get("config", {})
    backbone = config.get("regressor", {}).get("backbone")
    if config.get("model") != "regressor" or backbone not in ("codegen", "auto"):
        return []
    init = content.get("init")
    if init is None:
        return [
            f"weights: backbone {backbone} started from random weights (--init random), not from a "
            "pretrained model"
        ]
    facts = [init.get(key) for key in ("name", "digest")] if isinstance(init, Mapping) else []
    if not facts or not all(isinstance(one, str) for one in facts):
        raise ValueError("init has no name and digest of a checkpoint")
    return [
        f"weights: backbone {backbone} started from the checkpoint {facts[0]} (digest {facts[1]})"
    ]


@contextmanager
def _as_a_run(folder: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:  # an error in the run's config, not in this command's options
        raise BadInput(f"{folder}: not a readable run: {error}") from None


def _check_whole(folder: Path) -> None:
    """Check that every file of the run exists with its size; hashes are not compared here."""
    if stage_of(folder) is not Stage.PUBLISHED:
        raise BadInput(
            f"{folder}: its training is not finished; run the same `llmperf train` command again, "
            "which resumes it"
        )
    files = read_json(folder / PUBLISHED_FILE).get("files")
    if not isinstance(files, dict):
        raise BadInput(f"{folder / PUBLISHED_FILE}: lists no files; train the run again")
    for name, facts in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise BadInput(
                f"{folder / PUBLISHED_FILE}: lists a file outside of the run's folder; copy the "
                "run again, or train it anew"
            )
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            found = "is missing" if size is None else f"has {size:,} of {facts['bytes']:,} bytes"
            raise BadInput(
                f"{folder}: damaged run: {name} {found}; copy it again, or train it anew"
            )
