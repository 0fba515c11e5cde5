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
from llmperf_common.records import Device
from llmperf_common.statistics.conformal import Conformal
from llmperf_common.statistics.splits import Split
from trainer.config import TrainConfig
from trainer.data.foreign_files import check_files, read_table, reading
from trainer.data.training_range import TrainingRange
from trainer.errors import BadInput
from trainer.interface import Predictor
from trainer.registry import load_model
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
from trainer.run.kernel_factors import FewShot, KernelFactors


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
        kernels: the kernels that were fitted (``KERNEL_COLUMNS``).
        few_shot: distribution of kernels' factors; None if an earlier release made the run or
            the run had too few kernels.
        factors: factors of measured kernels (``llmperf calibrate``), or None.
        notes: notes that apply to every evaluation of the run.
        marker: content of ``published.json``, read before the model; a later training changes it.
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

    @property
    def reads_work(self) -> bool:
        """Whether the fit rows had launches with counted work, so that the model can use it."""
        if WORK_FEATURE not in self.known.names:
            return False
        return bool(np.isfinite(self.known.low[self.known.names.index(WORK_FEATURE)]))


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
    with reading(f"{folder}"):
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
    with _as_a_run(folder), reading(f"{folder}: not a readable run: a file of it"):
        name = str(content["model"])
        config = TrainConfig.from_mapping(content["config"])
        split = Split.from_json(read_json(folder / SPLIT_FILE))
        conformal = Conformal.from_json(read_json(folder / CONFORMAL_FILE))
        packed = folder / PACKED_RANGE_FILE
        ranges = read_json(packed if packed.exists() else folder / RANGE_FILE)
        known = TrainingRange.from_json(ranges)
        records = [device_from_mapping(item) for item in read_json(folder / DEVICE_FILE)["devices"]]
        kernels = read_table(folder / KERNELS_FILE)
        learnt = folder / FEW_SHOT_FILE
        few_shot = FewShot.from_json(read_json(learnt)) if learnt.exists() else None
        devices: dict[str, Device] = {}
        for record in records:
            devices.setdefault(record.device_class, record)
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
        notes=tuple(origin_notes(content)),
        marker=marker,
    )


def published_marker(folder: Path) -> bytes | None:
    """Return the content of the run's marker, with its files' hashes; None without a marker."""
    path = folder / PUBLISHED_FILE
    return path.read_bytes() if path.exists() else None


def origin_notes(content: Mapping[str, Any]) -> list[str]:
    """Return a note on the initial weights of a codegen or auto backbone, from ``config.json``."""
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
    return [
        f"weights: backbone {backbone} started from the checkpoint {init['name']} "
        f"(digest {init['digest']})"
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
