"""Content of checkpoints: master weights, AdamW's moments, step, early stopping, seconds.

A rank is one process of the fit; the world size is the number of ranks. Owns the rules by which the
ranks write and read a checkpoint together. Parameters are stored by name, not partitioned, in
float32, so that a fit can resume with another world size or ZeRO stage. Frozen parameters and
buffers do not change in a fit and are not stored.

A shard (a safetensors file) has up to ``_SHARD_ELEMENTS`` elements. The assignment of parameters to
shards depends on their shapes only. Rank r writes the shards r, r + world_size, ...
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from trainer.errors import BadInput, FitFailed, RunExists
from trainer.fit.checkpoint_folder import (
    STATE_FILE,
    Checkpoint,
    CrashPoint,
    begin,
    drop,
    newest_whole,
    prune,
    publish,
    read_whole,
    set_aside,
    state_in,
    steps_in,
    write_file,
)
from trainer.fit.checkpoint_folder import name_of as name_of_step
from trainer.fit.checkpoint_shapes import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    check_moments,
    check_weights,
    moments_name,
    weights_in,
    weights_name,
)
from trainer.fit.engine import Engine, ParameterState
from trainer.fit.ranks import Ranks
from trainer.fit.stopping import Stopping

_FORMAT = 1
_SHARD_ELEMENTS = 2**28
"""Maximum number of elements of a shard: 1 GiB of weights and 2 GiB of moments."""
_SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """The state of a fit without its weights.

    Attributes:
        step: number of optimiser steps done; each was one update of AdamW.
        identity: the run's identity; a fit resumes only from a checkpoint with the same identity.
        tokens: digest of the fitted tokens; a fit resumes only with the same tokens.
        stopping: state of early stopping.
        seconds: time spent fitting, over all starts.
    """

    step: int
    identity: str
    tokens: str | None
    stopping: Stopping
    seconds: float


def save(
    folder: Path,
    engine: Engine,
    state: FitState,
    ranks: Ranks,
    *,
    keep: int,
    at_point: CrashPoint,
) -> Path:
    """Write a checkpoint and remove old ones; all ranks must call it together.

    Args:
        folder: the folder of the checkpoints, which all ranks see.
        engine: its weights and moments are written.
        state: step, identity, early stopping, seconds.
        ranks: the process group.
        keep: number of newest checkpoints to keep; the best checkpoint that each of them names is
            kept, too.
        at_point: is called on the writing rank after each step of the writing.

    Returns:
        The checkpoint's folder.

    Raises:
        FitFailed: The checkpoint cannot be written. Earlier checkpoints stay.
    """
    assert engine.num_updates == state.step, "each step updates the weights once"
    new, problem = folder / (".new-" + name_of_step(state.step)), ""
    if ranks.is_first:
        problem = _attempt(lambda: at_point(begin(folder, state.step).name)) or ""
    problem = ranks.broadcast(problem)
    files: dict[str, Any] = {}
    if not problem:
        problem, files = _write_shards(new, engine, ranks, at_point)
    if ranks.is_first:
        if not problem:
            problem = _attempt(lambda: _finish(folder, new, files, state, keep, at_point)) or ""
        if problem:
            drop(new)
            problem = _message(folder, state.step, problem)
    problem = ranks.broadcast(problem)
    if problem:
        raise FitFailed(problem)
    return folder / name_of_step(state.step)


def resume(
    folder: Path, identity: str, ranks: Ranks, *, tokens: str | None = None
) -> tuple[Checkpoint, FitState] | None:
    """Return the newest whole checkpoint and its state, the same on all ranks; None without one.

    Newer checkpoints that are not whole are hidden. A checkpoint of this run is whole only if its
    state and its moments have the form that ``save`` writes. A checkpoint of an earlier release
    does not record its tokens, so it is resumed without this check.

    Raises:
        RunExists: The checkpoint belongs to another run.
        BadInput: The checkpoint was made with other tokens.
    """

    def check(one: Checkpoint) -> None:
        if _is_of_run(one, identity):
            _state_of(one, identity)
            check_moments(one.path)

    found = newest_whole(folder, check) if ranks.is_first else None
    if ranks.is_first:
        for step in steps_in(folder):
            if found is None or step > found.step:
                set_aside(folder / name_of_step(step))
    found = ranks.broadcast(found)
    if found is None:
        return None
    if not _is_of_run(found, identity):
        raise RunExists(
            f"{folder}: holds the checkpoints of another run (other data, model, config or "
            "release): name another output folder"
        )
    before = found.state.get("tokens")
    if None not in (before, tokens) and before != tokens:
        raise BadInput(
            f"{found.path}: was made with other tokens than the run's token cache holds now "
            "(another version of LLMPerf or of a library may have written the cache again): "
            "restore the run's folder prepared/ from a backup, or name a new folder for the run"
        )
    return found, replace(_state_of(found, identity), tokens=tokens)


def _is_of_run(checkpoint: Checkpoint, identity: str) -> bool:
    state = checkpoint.state
    return (state.get("format"), state.get("identity")) == (_FORMAT, identity)


def _state_of(checkpoint: Checkpoint, identity: str) -> FitState:
    """Return the state in a checkpoint of this format. Raises ValueError."""
    step, seconds = checkpoint.state.get("step"), checkpoint.state.get("seconds")
    if type(step) is not int or step != checkpoint.step:
        raise ValueError(f"{STATE_FILE} is of step {step!r:.40}")
    if not isinstance(seconds, int | float) or not 0 <= seconds <= sys.float_info.max:
        raise ValueError(f"{STATE_FILE}: seconds = {seconds!r:.40} is not a duration")
    stopping = Stopping.from_json(checkpoint.state.get("stopping"))
    if stopping.best_step is not None and stopping.best_step > step:
        raise ValueError(f"{STATE_FILE}: its best step {stopping.best_step} is after step {step}")
    return FitState(
        step=step, identity=identity, tokens=None, stopping=stopping, seconds=float(seconds)
    )


def load_weights(checkpoint: Path, model: nn.Module) -> None:
    """Set the trainable parameters of ``model`` to the master weights of a checkpoint.

    Raises:
        BadInput: The checkpoint has other parameters, or cannot be read.
    """
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    check_weights(checkpoint, {name: one.shape for name, one in parameters.items()})
    try:
        for path in weights_in(checkpoint):
            with safe_open(path, framework="pt") as file, torch.no_grad():
                for name in file.keys():  # noqa: SIM118  (the file is not a dict)
                    parameters[name].copy_(file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{checkpoint}: cannot be read ({error})") from None


def states_of(checkpoint: Path) -> Iterator[tuple[str, ParameterState]]:
    """Yield name and state of each parameter in a checkpoint that ``resume`` returned."""
    for path in weights_in(checkpoint):
        beside = path.with_name(moments_name(path.name))
        with (
            safe_open(path, framework="pt") as weights,
            safe_open(beside, framework="pt") as moments,
        ):
            for name in weights.keys():  # noqa: SIM118
                yield (
                    name,
                    ParameterState(
                        weight=weights.get_tensor(name),
                        exp_avg=moments.get_tensor(name + FIRST_MOMENT),
                        exp_avg_sq=moments.get_tensor(name + SECOND_MOMENT),
                    ),
                )


def _write_shards(
    new: Path, engine: Engine, ranks: Ranks, at_point: CrashPoint
) -> tuple[str, dict[str, Any]]:
    """Write weights and moments; return the first problem or "", and bytes and sha256 of files.

    A thread writes one shard while the ranks gather the next, so a rank holds two shards at a time.
    """
    shards = _plan(engine.parameters)
    mine: dict[str, Any] = {}

    def write(number: int, states: Mapping[str, ParameterState]) -> None:
        for name, content in _files(number, states):
            mine[name] = write_file(new / name, content)
            at_point(name)

    with ThreadPoolExecutor(1, "checkpoint") as writer:
        written: Future[str] | None = None
        problem = ""
        for first in range(0, len(shards), ranks.world_size):
            states: dict[str, ParameterState] = {}
            for number, names in enumerate(shards[first : first + ranks.world_size], first):
                for name in names:
                    state = engine.state(name)  # all ranks gather the state; one rank keeps it
                    if number % ranks.world_size == ranks.rank:
                        states[name] = _on_cpu(state)
            problem = problem or (written.result() if written else "")
            if states and not problem:
                written = writer.submit(
                    lambda *shard: _attempt(lambda: write(*shard)) or "", first + ranks.rank, states
                )
        problem = problem or (written.result() if written else "")
    gathered = ranks.gather((problem, mine))
    files = {name: facts for _, part in gathered for name, facts in part.items()}
    return next((problem for problem, _ in gathered if problem), ""), files


def _finish(
    folder: Path,
    new: Path,
    files: dict[str, Any],
    state: FitState,
    keep: int,
    at_point: CrashPoint,
) -> None:
    content = {
        "format": _FORMAT,
        "step": state.step,
        "identity": state.identity,
        "tokens": state.tokens,
        "stopping": state.stopping.to_json(),
        "seconds": state.seconds,
    }
    files[STATE_FILE] = write_file(new / STATE_FILE, json.dumps(content, indent=1).encode())
    at_point(STATE_FILE)
    publish(new, files, at_point)
    prune(folder, keep, _best_steps(folder, keep), at_point)


def _best_steps(folder: Path, keep: int) -> set[int]:
    """Return the best steps that the newest checkpoints name; a fit may resume from each."""
    best = set()
    for step in steps_in(folder)[-keep:]:
        try:
            state = state_in(folder / name_of_step(step))
            best.add(Stopping.from_json(state.get("stopping")).best_step)
        except (OSError, ValueError):
            continue  # not whole
    return {step for step in best if step is not None}


def _files(number: int, states: Mapping[str, ParameterState]) -> Iterator[tuple[str, bytes]]:
    weights = {name: state.weight for name, state in states.items()}
    yield weights_name(number), safetensors.torch.save(weights)
    moments = {name + FIRST_MOMENT: state.exp_avg for name, state in states.items()}
    moments |= {name + SECOND_MOMENT: state.exp_avg_sq for name, state in states.items()}
    yield moments_name(weights_name(number)), safetensors.torch.save(moments)


def _plan(shapes: Mapping[str, torch.Size]) -> list[list[str]]:
    """Return the names in each shard: one, or several with ``_SHARD_ELEMENTS`` elements at most."""
    shards: list[list[str]] = []
    capacity = 0
    for name, shape in shapes.items():
        if not shards or prod(shape) > capacity:
            shards.append([])
            capacity = _SHARD_ELEMENTS
        shards[-1].append(name)
        capacity -= prod(shape)
    return shards


def _on_cpu(state: ParameterState) -> ParameterState:
    return ParameterState(
        weight=state.weight.cpu().contiguous(),
        exp_avg=state.exp_avg.cpu().contiguous(),
        exp_avg_sq=state.exp_avg_sq.cpu().contiguous(),
    )


def _attempt(work: Any) -> str | None:
    """Do ``work``; return the message of an OSError with what to do, or None if there was none."""
    try:
        work()
    except OSError as error:
        if error.errno in _SPACE_ERRORS:
            return "the disk is full: free some space and run the same command again"
        return f"{error.strerror or error}: correct this and run the same command again"
    return None


def _message(folder: Path, step: int, problem: str) -> str:
    whole = next(
        (old for old in reversed(steps_in(folder)) if not isinstance(read_whole(folder, old), str)),
        None,
    )
    kept = "there is no earlier checkpoint" if whole is None else f"step {whole} is kept"
    return f"{folder}: the checkpoint of step {step} cannot be written ({kept}); {problem}"
