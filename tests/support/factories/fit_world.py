"""Small fits in processes of their own: a model, its data, and points at which a process dies."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from llmperf.exits import leave, run_guarded
from trainer.fit import checkpoint
from trainer.fit.checkpoint import states_of
from trainer.fit.loop import FitPlan, FitResult, fit
from trainer.fit.ranks import Ranks, join_ranks
from trainer.fit.step_source import Pass, StepPasses
from trainer.regressor_config import CheckpointConfig, LogConfig, OptimiserConfig

NUM_FEATURES, NUM_LAUNCHES = 5, 3
_PRELOADED = [
    "tests.support.factories.fit_world",
    "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fit; the fields below the line may differ between starts of one fit."""

    max_steps: int = 40
    clip_norm: float = 0.5
    stage: int = 1
    precision: str = "fp32"
    loss: str = "l1"
    learning_rate: float = 1e-2
    packs_per_step: int = 6
    identity: str = "a"
    validated_every: int = 1000
    patience: int = 0
    # ---
    packs_per_pass: int = 3
    checkpoint_every: int = 1000
    keep: int = 2
    shard_elements: int = 60
    dies_after_step: int = 0
    dies_at: str = ""
    fills_disk_at: str = ""
    is_asked_at_step: int = 0
    chosen_rank: int = 0
    poisoned_step: int = 0


@dataclass(frozen=True, slots=True)
class SmallOutput:
    log2_ns: torch.Tensor
    spread: torch.Tensor


class SmallModel(nn.Module):
    """A model with odd sizes, so that partitions need padding, and with a mean as buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.backbone = nn.Linear(NUM_FEATURES, 13)
        self.norm = nn.LayerNorm(13)
        self.head = nn.Linear(13, 2)
        self.register_buffer("mean", torch.tensor(13.2001))

    def forward(self, batch: torch.Tensor) -> SmallOutput:
        states = torch.tanh(self.backbone(batch.to(self.backbone.weight.dtype)))
        output = self.head(self.norm(states)).float()
        return SmallOutput(
            log2_ns=output[..., 0] + self.mean, spread=functional.softplus(output[..., 1]) + 0.01
        )


@dataclass(frozen=True, slots=True)
class SmallSource:
    """Packs with random launches, as a function of the step; some packs have no launch."""

    packs_per_step: int
    packs_per_pass: int
    poisoned_step: int = 0

    def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
        rng = np.random.default_rng((11, step))
        count = self.packs_per_step
        features = rng.normal(size=(count, NUM_LAUNCHES, NUM_FEATURES))
        target = 13 + features[..., 0] * 2 + np.abs(features[..., 1])
        weight = rng.uniform(0.1, 3, (count, NUM_LAUNCHES)) * (
            rng.random((count, NUM_LAUNCHES)) < 0.7
        )
        if step == self.poisoned_step:
            target[:] = np.inf
        passes = list(self._slice(rank, world_size, features, target, weight))
        return StepPasses(passes=passes, total_weight=float(weight.sum()))

    def _slice(
        self, rank: int, world_size: int, features: Any, target: Any, weight: Any
    ) -> Iterator[Pass]:
        per_round = self.packs_per_pass * world_size
        for start in range(0, self.packs_per_step, per_round):
            first = start + rank * self.packs_per_pass
            index = np.arange(first, first + self.packs_per_pass)
            there = (index < min(start + per_round, self.packs_per_step))[:, None]
            index = np.minimum(index, self.packs_per_step - 1)
            w = weight[index] * there  # beyond the end, packs without weight fill the pass
            yield Pass(
                batch=torch.tensor(features[index], dtype=torch.float32),
                log2_ns=torch.tensor(target[index], dtype=torch.float32),
                weight=torch.tensor(w, dtype=torch.float32),
                num_launches=int((w > 0).sum()),
                num_tokens=int((w > 0).sum()) * NUM_FEATURES,
                flops=1e6,
            )


@dataclass(frozen=True, slots=True)
class SmallValidation:
    """A source of twelve packs that are in no step."""

    def passes(self, rank: int, world_size: int) -> list[Pass]:
        return list(SmallSource(12, 2).passes(10**6, rank, world_size).passes)


def plan_of(case: Case, folder: Path) -> FitPlan:
    return FitPlan(
        source=Trouble(
            SmallSource(case.packs_per_step, case.packs_per_pass, case.poisoned_step), case
        ),
        validation=SmallValidation(),
        optimiser=OptimiserConfig.from_mapping(
            {
                "loss": case.loss,
                "learning_rate": case.learning_rate,
                "backbone_learning_rate": case.learning_rate / 3,
                "warmup_steps": 5,
                "max_steps": case.max_steps,
                "clip_norm": case.clip_norm,
                "precision": case.precision,
                "zero_stage": case.stage,
                "evaluate_every_steps": case.validated_every,
                "patience": case.patience,
            }
        ),
        checkpoint=CheckpointConfig(every_steps=case.checkpoint_every, keep=case.keep),
        log=LogConfig(every_steps=1, tensorboard=False),
        folder=folder,
        identity=case.identity,
        seed=3,
        peak_flops=1e12,
    )


@dataclass(frozen=True, slots=True)
class Trouble:
    """A source that kills or signals its process before a step; passes are made a step ahead."""

    source: SmallSource
    case: Case

    def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
        if rank == self.case.chosen_rank:
            if step == self.case.dies_after_step + 1 > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == self.case.is_asked_at_step:
                os.kill(os.getpid(), signal.SIGTERM)
        return self.source.passes(step, rank, world_size)


def fit_here(case: Case, folder: Path, ranks: Ranks | None = None) -> FitResult:
    """Fit a case in this process."""
    ranks = ranks or join_ranks("cpu")
    num_begun = 0

    def at_point(point: str) -> None:
        nonlocal num_begun
        num_begun += point.startswith(".new-")
        name = f"{num_begun}:{'begun' if point.startswith('.new-') else point}"
        if ranks.rank == case.chosen_rank:
            if name == case.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if name == case.fills_disk_at:
                raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint._SHARD_ELEMENTS = case.shard_elements
    lines: list[str] = []
    return fit(SmallModel(), plan_of(case, folder), ranks, progress=lines.append, at_point=at_point)


@dataclass(frozen=True, slots=True)
class Started:
    """A process of a group, and the file with the process's stderr and stdout."""

    process: Any
    said: Path

    def end(self) -> tuple[int, str]:
        """Return exit code (negative for a signal) and output."""
        self.process.join(100)
        assert not self.process.is_alive()
        return self.process.exitcode, self.said.read_text()


def launch(case: Case, folder: Path, world_size: int = 1) -> list[Started]:
    """Start the processes of a group by a fork server that has imported torch and DeepSpeed."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    for rank in range(world_size):
        said = folder / f"said-{rank}"
        process = context.Process(target=_child, args=(case, folder, rank, world_size, port, said))
        process.start()
        started.append(Started(process, said))
    return started


def _child(case: Case, folder: Path, rank: int, world_size: int, port: int, said: Path) -> NoReturn:
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    group = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in group.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    code: str | int | None = 0
    try:
        run_guarded(lambda: print(fit_here(case, folder)))
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001  (the test reads it)
        traceback.print_exc()
        code = 1
    leave(code)


def run(case: Case, folder: Path, world_size: int = 1) -> list[tuple[int, str]]:
    """Run a group to its end; return the exit code and output of each process."""
    return [one.end() for one in launch(case, folder, world_size)]


def run_well(case: Case, folder: Path, world_size: int = 1) -> None:
    for code, said in run(case, folder, world_size):
        assert code == 0, said


def last_state(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Return weights and moments in the checkpoint of ``step``."""
    found = {}
    for name, state in states_of(folder / "checkpoints" / f"step-{step:08d}"):
        found |= {f"{name}.{part}": getattr(state, part) for part in state.__slots__}
    return found


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "fit.jsonl").read_text().splitlines()]


def as_rank_of_torchrun() -> None:
    """``torchrun -m tests.support.factories.fit_world FOLDER``: fit the default case."""
    run_guarded(lambda: print(fit_here(Case(), Path(sys.argv[1])).steps))


if __name__ == "__main__":
    as_rank_of_torchrun()
