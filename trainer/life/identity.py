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

from llmperf_common.files.plain_files import UnfitFileError, check_plain
from llmperf_common.ids import content_id
from trainer.config import TrainConfig
from trainer.data.dataset import TrainingData
from trainer.data.foreign_files import MAX_JSON_BYTES, read_json_value
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

_TEXTS = ("config.json", "tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json")
"""Files of a checkpoint that are read beside its weights; ``tokenizer_config.json`` and
``special_tokens_map.json`` are not read."""

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_MOST_WEIGHTS_BYTES = 2**38
"""Maximum bytes of all weights of a checkpoint. A sparse file takes no space on a disk whatever its
size, but LLMPerf would hash it, at 0.7 GB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """A folder with pretrained weights, and a digest that identifies the weights."""

    folder: Path
    digest: str

    def to_json(self) -> dict[str, str]:
        """Return the record for a run's ``config.json``: name (not path) of the folder, digest."""
        return {"name": self.folder.resolve().name, "digest": self.digest}


def init_of(folder: Path) -> Init:
    """Return a checkpoint folder with its digest, from every byte of the files that are read.

    The weights are hashed whole, because two checkpoints of one architecture may differ in a few
    tensors only. SHA-256 takes 8 to 10 s for the 6 GB of CodeGen-2B, at 0.6 to 0.7 GB/s on one core
    (BLAKE2b: 0.5 GB/s). The name of the folder is not part of the digest.

    Raises:
        BadInput: There is no such folder, it holds no ``config.json``, or a file is not regular, is
            too large or cannot be read.
    """
    if not (folder / "config.json").is_file():
        what = "no such folder" if not folder.is_dir() else "this folder holds no config.json"
        raise BadInput(
            f"--init {folder}: {what}: give a Hugging Face checkpoint folder, or `random`"
        )
    try:
        weights = weights_in(folder)
        if sum(path.stat().st_size for path in weights if path.exists()) > _MOST_WEIGHTS_BYTES:
            raise BadInput(f"--init {folder}: has more than {_MOST_WEIGHTS_BYTES} bytes of weights")
        files = [_hashed(folder / name, MAX_JSON_BYTES) for name in _TEXTS]
        files += [_hashed(path, _MOST_WEIGHTS_BYTES) for path in weights]
        digest = content_id("init", files)
    except (UnfitFileError, OSError, ValueError) as error:  # ValueError: not a name of a file
        raise BadInput(f"--init {folder}: {error}") from None
    return Init(folder=folder, digest=digest)


def weights_in(folder: Path) -> list[Path]:
    """Return the files that ``trainer.regressor.checkpoint_files.weight_files`` returns.

    That module imports torch, but this one must not. If there are no weights, or the index of
    their shards is damaged, the list is empty; the error comes later, when the weights are loaded.
    """
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                shards = set(read_json_value(index)["weight_map"].values())
                return [folder / Path(shard).name for shard in sorted(shards)]
            except (AttributeError, LookupError, TypeError, ValueError):
                return []
    return []


def _hashed(path: Path, max_bytes: int) -> list[str | None]:
    """Return a file's name and SHA-256; None in place of the hash of a missing file."""
    try:
        check_plain(path, max_bytes=max_bytes)
    except FileNotFoundError:
        return [path.name, None]
    with path.open("rb") as file:
        return [path.name, hashlib.file_digest(file, "sha256").hexdigest()]


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
