"""A training in this process: alone, or one of those that ``torchrun`` or Ray have started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainer.data.dataset import load_data
from trainer.interface import Progress
from trainer.launch.job import TrainJob
from trainer.life.conductor import Conductor, follow
from trainer.life.identity import LANGUAGE_MODEL
from trainer.life.train import RunSummary, published_summary, train

if TYPE_CHECKING:
    from trainer.fit.ranks import Ranks


def train_here(job: TrainJob, progress: Progress) -> RunSummary:
    """Do this process's part of a training; the first prepares, says and publishes, all fit.

    The environment names the others, as ``torchrun`` and Ray Train set it: ``RANK``, ``WORLD_SIZE`` and
    ``MASTER_ADDR``.

    Raises:
        ConfigError: The run cannot be, or its folder holds something else.
        BadInput: The dataset or the checkpoint cannot be used.
    """
    rank, num_processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    init = job.pretrained()
    is_shared = job.config.model == LANGUAGE_MODEL

    def join() -> Ranks:
        from trainer.fit.ranks import join_ranks  # noqa: PLC0415  (torch)

        return join_ranks(job.config.train.device)

    if rank > 0:
        if is_shared:
            from trainer.life.language import fit_prepared  # noqa: PLC0415  (torch)

            follow(join(), lambda folder, ranks: fit_prepared(folder, ranks, _silent))
        return published_summary(job.out)
    conductor = Conductor(join, num_processes if is_shared else 1)
    try:
        data = load_data(job.data)
        summary = train(data, job.config, job.out, progress, init=init, conductor=conductor)
    except BaseException as error:
        conductor.end(error)
        raise
    conductor.end()
    return summary


def _silent(_line: str) -> None:
    return None
