"""Samples per second of a recipe, and its loss over the training time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import torch

from benchmarks.models.training_speed.recipes import Recipe
from trainer.fit.engine import Engine
from trainer.fit.ranks import Ranks
from trainer.fit.step_source import StepPasses
from trainer.regressor_config import OptimiserConfig

PEAK_FLOPS = 989e12
"""Peak FLOP/s of an NVIDIA H100 or H200 (SXM), bf16, dense. MFU is the used share of it; other
devices get no MFU."""

_WARM_STEPS = 3
_LEAST_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The measurements of a recipe; rates are over the steps after the first three.

    Attributes:
        recipe: its name.
        size: size of the model.
        setting: the recipe's settings.
        steps: number of measured steps.
        step_s: mean seconds of a step.
        samples_per_s: launches per second.
        tokens_per_s: tokens without padding per second, each counted once.
        mfu: by the operations of ``trainer/regressor/flops.py``; None on a device without a known
            peak.
        start_s: seconds of the first three steps: compilation, first allocation.
        peak_gib: peak of the device's memory.
        recompiled: number of graphs that torch compiled during the measurement.
    """

    recipe: str
    size: str
    setting: str
    steps: int
    step_s: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float | None
    start_s: float
    peak_gib: float
    recompiled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAt:
    """The validation loss of a recipe after some training; its time excludes validation."""

    recipe: str
    size: str
    setting: str
    learning_rate: float
    trained_s: float
    steps: int
    samples: int
    loss: float


def speed_of(recipe: Recipe, size: str, ranks: Ranks, *, seconds: float) -> Speed:
    """Train for about ``seconds`` and return the rates."""
    with closing(_engine(recipe, ranks, learning_rate=1e-5)) as engine:
        steps = _steps(recipe)
        began = time.perf_counter()
        for _ in range(_WARM_STEPS):
            _step(engine, next(steps), 1e-5)
        _wait(ranks)
        compiled = _graphs()
        started = time.perf_counter()
        count = launches = tokens = 0
        flops = 0.0
        while count < _LEAST_STEPS or time.perf_counter() - started < seconds:
            passes = next(steps)
            _step(engine, passes, 1e-5)
            _wait(ranks)
            count += 1
            for one in passes.passes:
                launches += one.num_launches
                tokens += one.num_tokens
                flops += one.flops
        elapsed = time.perf_counter() - started
        steps.close()
        return Speed(
            recipe=recipe.name,
            size=size,
            setting=recipe.setting,
            steps=count,
            step_s=elapsed / count,
            samples_per_s=launches / elapsed,
            tokens_per_s=tokens / elapsed,
            mfu=flops / elapsed / PEAK_FLOPS if _has_known_peak(ranks) else None,
            start_s=started - began,
            peak_gib=torch.cuda.max_memory_allocated() / 2**30 if _is_cuda(ranks) else 0.0,
            recompiled=_graphs() - compiled,
        )


def losses_of(
    recipe: Recipe,
    size: str,
    ranks: Ranks,
    *,
    learning_rate: float,
    seconds: float,
    looks: int,
    warmup_steps: int = 20,
) -> Iterator[LossAt]:
    """Train for ``seconds`` and yield the validation loss ``looks`` times on the way.

    The first steps, during which torch compiles, count as steps, but their time does not count.
    """
    with closing(_engine(recipe, ranks, learning_rate=learning_rate)) as engine:
        steps = _steps(recipe)
        trained = 0.0
        count = samples = 0
        for look in range(1, looks + 1):
            while trained < seconds * look / looks:
                passes = next(steps)
                count += 1
                began = time.perf_counter()
                _step(engine, passes, learning_rate * min(1.0, count / warmup_steps))
                _wait(ranks)
                trained += time.perf_counter() - began if count > _WARM_STEPS else 0.0
                samples += sum(one.num_launches for one in passes.passes)
            loss = weight = 0.0
            for one in recipe.validation():
                loss += engine.loss_of(one)
                weight += float(one.weight.sum())
            yield LossAt(
                recipe=recipe.name,
                size=size,
                setting=recipe.setting,
                learning_rate=learning_rate,
                trained_s=trained,
                steps=count,
                samples=samples,
                loss=loss / weight,
            )
        steps.close()


def forget(recipe: Recipe) -> None:
    """Free the device memory of a recipe."""
    recipe.model.to("meta")  # frees device memory without a copy
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _engine(recipe: Recipe, ranks: Ranks, *, learning_rate: float) -> Engine:
    optimiser = OptimiserConfig(
        loss="l1",
        learning_rate=learning_rate,
        precision="bf16" if _is_cuda(ranks) else "fp32",
        zero_stage=recipe.zero_stage,
    )
    recipe.model.train()
    return Engine(recipe.model, optimiser=optimiser, ranks=ranks)


def _step(engine: Engine, passes: StepPasses, rate: float) -> None:
    for number, one in enumerate(passes.passes, 1):
        engine.add_gradient(
            one, total_weight=passes.total_weight, is_last=number == len(passes.passes)
        )
    engine.step(rate)


def _steps(recipe: Recipe) -> Iterator[StepPasses]:
    """Yield the steps in order; each is prepared while the last one computes, as in a fit."""
    with ThreadPoolExecutor(1) as pool:
        number = 1
        ahead = pool.submit(recipe.source.passes, number, 0, 1)
        while True:
            passes = ahead.result()
            number += 1
            ahead = pool.submit(recipe.source.passes, number, 0, 1)
            yield passes


def _is_cuda(ranks: Ranks) -> bool:
    return ranks.device.type == "cuda"


def _wait(ranks: Ranks) -> None:
    if _is_cuda(ranks):
        torch.cuda.synchronize()


def _has_known_peak(ranks: Ranks) -> bool:
    if not _is_cuda(ranks):
        return False
    name = torch.cuda.get_device_name(ranks.device)
    return "H100" in name or "H200" in name


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
