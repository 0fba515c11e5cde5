"""A small fit in a process of its own: a model, its data, and a point at which the process dies.

``python -m tests.fit_world FOLDER CASE`` fits ``CASE`` (JSON of ``Case``) into ``FOLDER`` as one rank of the group that the
environment describes. ``run`` starts a group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from trainer.fit.checkpoint import states_of
from trainer.fit.loop import FitPlan, FitResult, fit
from trainer.fit.ranks import Ranks, join_ranks
from trainer.fit.step_source import Pass, StepPasses
from trainer.regressor_config import CheckpointConfig, LogConfig, OptimiserConfig

NUM_FEATURES, NUM_LAUNCHES = 5, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fit; what a start of it may change is below the line."""

    max_steps: int = 40
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
    dies_after_step: int = 0
    dies_at: str = ""
    dying_rank: int = 0
    poisoned_step: int = 0


@dataclass(frozen=True, slots=True)
class SmallOutput:
    log2_ns: torch.Tensor
    spread: torch.Tensor


class SmallModel(nn.Module):
    """Odd sizes, so that partitions need padding; a mean as buffer, as the regressor has."""

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
    """Packs with random launches, some without any: a function of the step."""

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
            w = weight[index] * there  # beyond the end: packs of no weight fill the pass up
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
    """Twelve packs that no step has."""

    def passes(self, rank: int, world_size: int) -> list[Pass]:
        return list(SmallSource(12, 2).passes(10**6, rank, world_size).passes)


def plan_of(case: Case, folder: Path) -> FitPlan:
    return FitPlan(
        source=SmallSource(case.packs_per_step, case.packs_per_pass, case.poisoned_step),
        validation=SmallValidation(),
        optimiser=OptimiserConfig.from_mapping(
            {
                "loss": case.loss,
                "learning_rate": case.learning_rate,
                "backbone_learning_rate": case.learning_rate / 3,
                "warmup_steps": 5,
                "max_steps": case.max_steps,
                "clip_norm": 0.5,
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


def fit_here(case: Case, folder: Path, ranks: Ranks | None = None) -> FitResult:
    """Fit in this process."""
    ranks = ranks or join_ranks("cpu")

    def die(point: str) -> None:
        if case.dies_at == point and ranks.rank == case.dying_rank:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(line: str) -> None:
        sys.stderr.write(line + "\n")

    plan = plan_of(case, folder)
    if case.dies_after_step:
        plan = _dying(plan, case)
    return fit(SmallModel(), plan, ranks, progress=watch, at_point=die)


def _dying(plan: FitPlan, case: Case) -> FitPlan:
    """Kill the process when it asks for the passes of the step after next."""

    class Dying:
        def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
            if step > case.dies_after_step and rank == case.dying_rank:
                os.kill(os.getpid(), signal.SIGKILL)
            return plan.source.passes(step, rank, world_size)

    return FitPlan(**{name: getattr(plan, name) for name in plan.__slots__} | {"source": Dying()})


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    group = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "MASTER_PORT": port}
    return {
        **os.environ,
        **{name: str(value) for name, value in group.items()},
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }


def launch(case: Case, folder: Path, world_size: int = 1) -> list[subprocess.Popen[str]]:
    """Start the processes of a group; stderr of each is a pipe."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fit_world", str(folder), json.dumps(asdict(case))],
            env=environment(rank, world_size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def run(case: Case, folder: Path, world_size: int = 1) -> list[tuple[int, str]]:
    """Run a group to its end; return exit code and stderr of each process. Stdout must stay empty."""
    ended = []
    for process in launch(case, folder, world_size):
        out, err = process.communicate(timeout=100)
        assert out == ""
        ended.append((process.returncode, err))
    return ended


def run_well(case: Case, folder: Path, world_size: int = 1) -> None:
    for code, err in run(case, folder, world_size):
        assert code == 0, err


def last_state(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Return weights and moments in the checkpoint of ``step``."""
    found = {}
    for name, state in states_of(folder / "checkpoints" / f"step-{step:08d}"):
        found |= {f"{name}.{part}": getattr(state, part) for part in state.__slots__}
    return found


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "fit.jsonl").read_text().splitlines()]


def main() -> None:
    folder, text = sys.argv[1:]
    fit_here(Case(**json.loads(text)), Path(folder))


if __name__ == "__main__":
    from llmperf.exits import run_guarded

    run_guarded(main)
