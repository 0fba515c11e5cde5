"""The identity of a run: its data, its config, and its initial weights.

The number of processes, tokens per pass, checkpoints and logs are not part of the identity, so that
the same command on another machine resumes the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmperf_common.ids import content_id
from trainer.config import TrainConfig
from trainer.data.dataset import TrainingData
from trainer.errors import BadInput

LANGUAGE_MODEL: Final = "regressor"
"""Name of the model that ``trainer/fit/loop.py`` fits."""

_NEUTRAL: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("overwrite", "num_threads", "device"),
    "packing": ("tokens_per_pass",),
    "regressor": ("activation_checkpointing",),
    "optimiser": ("zero_stage",),
    "checkpoint": ("every_steps", "keep", "keep_after"),
    "log": ("every_steps", "tensorboard"),
    "cluster": ("start_timeout_s", "max_restarts"),
}
"""Config keys that are not part of a run's identity."""

_PIECES, _PIECE_BYTES = 16, 2**18
"""Number of pieces of a weights file that are hashed with its size, and bytes of a piece. The whole
file would be gigabytes. The pieces are spread evenly over the file, because variants of a
model may share their first weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """A folder with pretrained weights, and a digest that identifies the weights."""

    folder: Path
    digest: str

    def to_json(self) -> dict[str, str]:
        """Return the record for a run's ``config.json``: name (not path) of the folder, digest."""
        return {"name": self.folder.resolve().name, "digest": self.digest}


def init_of(folder: Path) -> Init:
    """Return a checkpoint folder with its digest, from its config and pieces of its weights.

    Raises:
        BadInput: There is no such folder, or it holds no ``config.json``.
    """
    if not (folder / "config.json").is_file():
        what = "no such folder" if not folder.is_dir() else "this folder holds no config.json"
        raise BadInput(
            f"--init {folder}: {what}: give a Hugging Face checkpoint folder, or `random`"
        )
    digest = hashlib.sha256()
    weights = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin"))
    for path in (folder / "config.json", *weights):
        num_bytes = path.stat().st_size
        digest.update(f"{path.name} {num_bytes}\n".encode())
        last = max(0, num_bytes - _PIECE_BYTES)
        with path.open("rb") as file:
            for piece in range(_PIECES):
                file.seek(last * piece // (_PIECES - 1))
                digest.update(file.read(_PIECE_BYTES))
    return Init(folder=folder, digest=digest.hexdigest()[:20])


def run_identity(
    data: TrainingData, config: TrainConfig, init: Init | None = None
) -> dict[str, str]:
    """Return the identity of this run: hashes of its config and of the dataset's usable rows."""
    tree = config.model_dump(mode="json")
    for node, keys in _NEUTRAL.items():
        for key in keys:
            del tree[node][key]
    return {
        "config_hash": content_id("train", [tree, None if init is None else init.digest]),
        "dataset_id": data.content_id(),
    }
