"""A training in this process, which is alone or one of those started by ``torchrun`` or Ray."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llmperf_common.config import ConfigError
from trainer.data.dataset import load_data
from trainer.interface import Progress
from trainer.launch.job import TrainJob
from trainer.life.conductor import Conductor, Stop, follow
from trainer.life.identity import LANGUAGE_MODEL
from trainer.life.summary import RunSummary
from trainer.life.train import published_summary, train
from trainer.registry import require_to_fit

if TYPE_CHECKING:
    from trainer.fit.ranks import Ranks

_GROUP_NUMBERS = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": "0"}
"""Environment variables that are numbers, and the values of a process that is alone."""


def train_here(job: TrainJob, progress: Progress, *, stop: Stop | None = None) -> RunSummary:
    """Do this process's part of a training: all processes fit; rank 0 also prepares and publishes.

    The environment variables ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and
    ``MASTER_PORT`` describe the group, as under ``torchrun``.

    Args:
        job: the training; the same in all processes.
        progress: receives lines of progress, on rank 0 only.
        stop: lets another thread end the fit; in the main thread signals end it, too.

    Raises:
        ConfigError: The config is impossible, or the run's folder holds something else.
        BadInput: Dataset or checkpoint cannot be used, or a process does not see the folder.
        FitFailed: The loss is not a finite number, or a checkpoint cannot be written.
        Interrupted: A signal or ``stop`` ended the fit; the state is saved.
        MissingExtra: The model needs a library that is not installed.
        FirstProcessFailedError: On ranks above 0, if rank 0 ended with an error.
    """
    rank, num_processes, *_ = (_group_number(name) for name in _GROUP_NUMBERS)
    stop = stop or Stop()
    if num_processes > 1 and job.config.model != LANGUAGE_MODEL:
        raise ConfigError(
            f"model {job.config.model!r} is fitted by one process: start `llmperf train` without "
            "torchrun"
        )

    def join() -> Ranks:
        from trainer.fit.ranks import join_ranks  # noqa: PLC0415  (torch)

        return join_ranks(job.config.train.device)

    if rank > 0:
        require_to_fit(LANGUAGE_MODEL)
        from trainer.life.language import fit_prepared  # noqa: PLC0415  (torch)

        def fit(folder: Path, ranks: Ranks) -> object:
            return fit_prepared(folder, ranks, job.weights(), _silent, interrupted=stop.asked)

        follow(join(), fit, stop)
        return published_summary(job.out)
    conductor = Conductor(join, num_processes, stop)
    try:
        init = job.pretrained()
        data = load_data(job.data)
        summary = train(data, job.config, job.out, progress, init=init, conductor=conductor)
    except BaseException as error:
        conductor.end(error)
        raise
    conductor.end()
    return summary


def _group_number(name: str) -> int:
    text = os.environ.get(name, _GROUP_NUMBERS[name])
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ConfigError(
            f"the environment variable {name} is {text[:40]!r}, not a number: start the training "
            f"with torchrun, which sets it, or remove it (unset {name})"
        )
    return int(text)


def _silent(_line: str) -> None:
    return None
