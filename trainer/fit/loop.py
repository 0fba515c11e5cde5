"""The training loop: steps, validations, checkpoints, and resuming.

Owns the order of these actions and the end of the fit. Each step is a function of the seed, the
step's number and the state before the step, so that a resumed fit equals an uninterrupted one.
World size, passes per step, interval of checkpoints and logging change the result only by rounding.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import nn

from trainer.errors import FitFailed, Interrupted
from trainer.fit import checkpoint as checkpoints
from trainer.fit.checkpoint import FitState
from trainer.fit.checkpoint_folder import CrashPoint, name_of
from trainer.fit.engine import Engine
from trainer.fit.interruption import interruption
from trainer.fit.meter import Meter
from trainer.fit.observers import Moment, Observer, open_observers
from trainer.fit.ranks import Ranks, lost_ranks
from trainer.fit.schedule import learning_rate
from trainer.fit.step_source import StepPasses, StepSource, ValidationSource
from trainer.fit.stopping import Stopping
from trainer.interface import Progress
from trainer.regressor_config import CheckpointConfig, LogConfig, OptimiserConfig

CHECKPOINTS_FOLDER = "checkpoints"


class Ending(StrEnum):
    """The reason why a fit ended."""

    MAX_STEPS = "max_steps"
    PATIENCE = "patience"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """The data and settings of a fit.

    Attributes:
        source: the training data.
        validation: the rows that select the best checkpoint; None selects the last checkpoint.
        optimiser: loss, optimiser and length of the fit.
        checkpoint: interval and number of checkpoints.
        log: interval and kinds of logs.
        folder: the folder of logs and checkpoints; all ranks see it.
        identity: the run's identity; a checkpoint with another identity raises RunExists.
        seed: seed of random numbers in the model (dropout); the source has its own seed.
        peak_flops: floating-point operations per second of one device, for MFU; None: no MFU.
        tokens: digest of the source's tokens; None: it has no tokens. A checkpoint that was made
            with other tokens raises BadInput.
    """

    source: StepSource
    validation: ValidationSource | None
    optimiser: OptimiserConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    folder: Path
    identity: str
    seed: int
    peak_flops: float | None = None
    tokens: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The result of a fit.

    Attributes:
        steps: number of optimiser steps done.
        ending: the reason why the fit ended.
        best: folder of the checkpoint with the lowest validation loss; without validation, of the
            last checkpoint.
        best_step: step of ``best``.
        best_loss: validation loss of ``best``; None without validation.
        seconds: time spent fitting, over all starts.
        resumed_from: the step that this start resumed from; 0 for a new fit.
    """

    steps: int
    ending: Ending
    best: Path
    best_step: int
    best_loss: float | None
    seconds: float
    resumed_from: int


def fit(
    model: nn.Module,
    plan: FitPlan,
    ranks: Ranks,
    *,
    progress: Progress,
    interrupted: threading.Event | None = None,
    at_point: CrashPoint = lambda _point: None,
) -> FitResult:
    """Fit ``model``, or resume an earlier start; all ranks must call it together.

    Args:
        model: returns an ``Output`` for a batch. The model is unusable afterwards: load the weights
            of the result's checkpoint with ``load_weights``.
        plan: data and settings.
        ranks: the process group.
        progress: receives lines about the fit, on the first rank.
        interrupted: event that ends the fit between two steps; the caller or a signal sets it.
        at_point: called after each step of writing a checkpoint.

    Raises:
        Interrupted: A rank received a signal; the state is saved.
        FitFailed: The loss or gradient is not a finite number, or a checkpoint cannot be written.
        RunExists: The folder holds the checkpoints of a run with another identity.
        BadInput: The folder holds checkpoints that were made with other tokens.
        PeerLost: Another process of the group has ended.
    """
    with lost_ranks():
        return _fit(model, plan, ranks, progress, interrupted, at_point)


def _fit(
    model: nn.Module,
    plan: FitPlan,
    ranks: Ranks,
    progress: Progress,
    interrupted: threading.Event | None,
    at_point: CrashPoint,
) -> FitResult:
    folder = plan.folder / CHECKPOINTS_FOLDER
    found = checkpoints.resume(folder, plan.identity, ranks, tokens=plan.tokens)
    state = FitState(
        step=0, identity=plan.identity, tokens=plan.tokens, stopping=Stopping(), seconds=0.0
    )
    if found is not None:
        state = found[1]
        checkpoints.load_weights(found[0].path, model)
    resumed_from = state.step
    if not _is_over(plan, state):
        with closing(Engine(model, optimiser=plan.optimiser, ranks=ranks)) as engine:
            if found is not None:
                engine.restore(checkpoints.states_of(found[0].path), num_updates=state.step)
            with (
                _observers(plan, ranks, progress, state.step) as observers,
                interruption(interrupted) as asked,
            ):
                state = _Fitting(plan, engine, ranks, observers, asked, at_point).run(state)
    return _result(plan, state, resumed_from)


class _Fitting:
    """One start of a fit."""

    def __init__(
        self,
        plan: FitPlan,
        engine: Engine,
        ranks: Ranks,
        observers: list[Observer],
        asked: threading.Event,
        at_point: CrashPoint,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._ranks = ranks
        self._observers = observers
        self._asked = asked
        self._at_point = at_point

    def run(self, state: FitState) -> FitState:
        """Do the steps after ``state``; return the state at the end."""
        plan, ranks = self._plan, self._ranks
        peak = None if plan.peak_flops is None else plan.peak_flops * ranks.world_size
        meter = Meter(
            max_steps=plan.optimiser.max_steps,
            device=ranks.device,
            peak_flops=peak,
            seconds_before=state.seconds,
        )
        with _ahead(plan.source, ranks, plan.optimiser.max_steps) as passes_of:
            while not _is_over(plan, state):
                state = self._step(state, passes_of(state.step + 1), meter)
        return state

    def _step(self, state: FitState, passes: StepPasses, meter: Meter) -> FitState:
        plan, step = self._plan, state.step + 1
        rate = learning_rate(plan.optimiser, step)
        torch.manual_seed(_seed(plan.seed, step, self._ranks.rank))
        is_interrupted = self._gradient(step, rate, passes, meter)
        norm = self._engine.step(rate)
        if not math.isfinite(norm):
            raise FitFailed(_not_finite("the gradient", step, rate, norm))
        loss = self._validate() if self._is_due(step, plan.optimiser.evaluate_every_steps) else None
        if loss is not None and not math.isfinite(loss):
            raise FitFailed(_not_finite("the validation loss", step, rate, loss))
        stopping = state.stopping if loss is None else state.stopping.after(step, loss)
        state = replace(
            state,
            step=step,
            stopping=stopping,
            seconds=meter.seconds,
        )
        if loss is not None or self._is_due(step, plan.log.every_steps):
            self._show(
                meter.moment(step, learning_rate=rate, gradient_norm=norm, validation_loss=loss)
            )
        if (
            is_interrupted
            or stopping.best_step == step
            or _is_over(plan, state)
            or self._is_due(step, plan.checkpoint.every_steps)
        ):
            self._save(state)
        if is_interrupted and not _is_over(plan, state):
            raise Interrupted(
                f"interrupted after step {step} of {plan.optimiser.max_steps}; "
                "the state is saved: run the same command again to resume"
            )
        return state

    def _gradient(self, step: int, rate: float, passes: StepPasses, meter: Meter) -> bool:
        """Compute a step's gradient; return whether a signal or the caller asked a rank to end."""
        loss, launches, tokens, flops = 0.0, 0, 0, 0.0
        for number, one in enumerate(passes.passes, 1):
            loss += self._engine.add_gradient(
                one,
                total_weight=passes.total_weight,
                is_last=number == len(passes.passes),
            )
            launches += one.num_launches
            tokens += one.num_tokens
            flops += one.flops
        loss, num_launches, num_tokens, flops, asked = self._ranks.sum(
            (loss, launches, tokens, flops, float(self._asked.is_set()))
        )
        loss /= passes.total_weight
        if not math.isfinite(loss):
            raise FitFailed(_not_finite("the loss", step, rate, loss))
        meter.add(loss=loss, launches=num_launches, tokens=num_tokens, flops=flops)
        return asked > 0

    def _validate(self) -> float | None:
        """Return the validation loss, the same on all ranks; None without validation rows."""
        if self._plan.validation is None:
            return None
        loss, weight = 0.0, 0.0
        for one in self._plan.validation.passes(self._ranks.rank, self._ranks.world_size):
            loss += self._engine.loss_of(one)
            weight += float(one.weight.double().sum())
        loss, weight = self._ranks.sum((loss, weight))
        return loss / weight

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._plan.optimiser.max_steps

    def _show(self, moment: Moment) -> None:
        for observer in self._observers:
            observer.show(moment)

    def _save(self, state: FitState) -> None:
        checkpoints.save(
            self._plan.folder / CHECKPOINTS_FOLDER,
            self._engine,
            state,
            self._ranks,
            keep=self._plan.checkpoint.keep,
            at_point=self._at_point,
        )


@contextmanager
def _ahead(source: StepSource, ranks: Ranks, max_steps: int) -> Iterator[_Ahead]:
    with ThreadPoolExecutor(1, thread_name_prefix="llmperf-passes") as pool:
        yield _Ahead(source, ranks, max_steps, pool)


class _Ahead:
    """Prepares the passes of the next step in a thread while the current step computes."""

    def __init__(
        self, source: StepSource, ranks: Ranks, max_steps: int, pool: ThreadPoolExecutor
    ) -> None:
        self._source, self._ranks, self._max_steps, self._pool = source, ranks, max_steps, pool
        self._begun: dict[int, Future[StepPasses]] = {}

    def __call__(self, step: int) -> StepPasses:
        """Return the passes of ``step``, and start to prepare those of the next step."""
        passes = (self._begun.pop(step, None) or self._begin(step)).result()
        if step < self._max_steps:
            self._begun[step + 1] = self._begin(step + 1)
        return passes

    def _begin(self, step: int) -> Future[StepPasses]:
        ranks = self._ranks
        return self._pool.submit(self._source.passes, step, ranks.rank, ranks.world_size)


@contextmanager
def _observers(
    plan: FitPlan, ranks: Ranks, progress: Progress, after_step: int
) -> Iterator[list[Observer]]:
    """Yield the observers of the first rank, and close them at the end; other ranks have none."""
    with ExitStack() as stack:
        observers: list[Observer] = []
        if ranks.is_first:
            observers = open_observers(
                plan.folder,
                tensorboard=plan.log.tensorboard,
                progress=progress,
                after_step=after_step,
            )
        for observer in observers:
            stack.callback(observer.close)
        yield observers


def _is_over(plan: FitPlan, state: FitState) -> bool:
    return state.step >= plan.optimiser.max_steps or state.stopping.is_over(plan.optimiser.patience)


def _result(plan: FitPlan, state: FitState, resumed_from: int) -> FitResult:
    folder = plan.folder / CHECKPOINTS_FOLDER
    best = state.stopping.best_step
    is_full = state.step >= plan.optimiser.max_steps
    return FitResult(
        steps=state.step,
        ending=Ending.MAX_STEPS if is_full else Ending.PATIENCE,
        best=folder / name_of(state.step if best is None else best),
        best_step=state.step if best is None else best,
        best_loss=None if best is None else state.stopping.best_loss,
        seconds=state.seconds,
        resumed_from=resumed_from,
    )


def _seed(seed: int, step: int, rank: int) -> int:
    """Return a rank's seed for a step, so that checkpoints need not store a generator's state."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % 2**63


def _not_finite(what: str, step: int, rate: float, value: float) -> str:
    return (
        f"{what} of step {step} is {value} (learning rate {rate:.3g}): the fit cannot go on; the "
        "last checkpoint stays. Set a lower optimiser.learning_rate or optimiser.clip_norm, a "
        "longer optimiser.warmup_steps, or optimiser.precision=fp32"
    )
