"""Helpers for tests of a training: a small dataset on disk, the command, and the log of a fit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.epochs import take_next_epoch
from llmperf_common.store.manifests.run import create_or_join_run
from llmperf_common.store.tables.shard import encode_device, write_shard
from tests.support.factories.dataset_factory import PLAN_HASH, make_run, publish_entries, write_pair
from tests.support.factories.synthetic_dataset import DEVICE, make_dataset

TINY = (
    "train.device=cpu",
    "prompt.max_tokens=128",
    "prompt.vocabulary=300",
    "packing.lengths=[128,256]",
    "packing.configs_per_kernel=4",
    "packing.tokens_per_step=1024",
    "packing.tokens_per_pass=256",
    "regressor.width=32",
    "optimiser.warmup_steps=2",
    "optimiser.evaluate_every_steps=4",
    "log.every_steps=1",
    "log.tensorboard=false",
    "checkpoint.keep_after=true",
    "judge.bootstrap_replicates=0",
)
"""Overrides of the preset ``tiny`` with which a step takes some milliseconds."""


def write_synthetic(path: Path, *, num_kernels: int = 12, num_configs: int = 12) -> Path:
    """Write a dataset whose times follow a known law, as a collector would; return ``path``."""
    made = make_dataset(num_kernels=num_kernels, num_configs=num_configs, seed=5)
    fs = PosixFilesystem(path)
    create_or_join_run(
        fs, make_run(num_tasks=len(made.tasks), device_classes=[DEVICE.device_class])
    )
    epoch = take_next_epoch(fs, who="tests")
    device = write_shard(fs, encode_device(DEVICE, plan_hash=PLAN_HASH))
    publish_entries(fs, [device, *write_pair(fs, f"e{epoch:06d}-all", made.tasks)], epoch=epoch)
    return path


def arguments(data: Path, out: Path, *settings: str) -> list[str]:
    """Return the arguments of ``llmperf`` for a training of a few steps."""
    chosen = [word for setting in (*TINY, *settings) for word in ("--set", setting)]
    return ["train", "--data", str(data), "--out", str(out), "--preset", "tiny", *chosen]


def moments(run: Path) -> list[dict[str, Any]]:
    """Return the records that the fit in ``run`` has logged, one for each step."""
    text = (run / "fit" / "fit.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a training that shares two cores with other processes."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}
