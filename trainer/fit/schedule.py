"""The learning rate as a pure function of the step, so that a resumed run continues it."""

from __future__ import annotations

import math
from typing import assert_never

from trainer.regressor_config import OptimiserConfig


def learning_rate(config: OptimiserConfig, step: int) -> float:
    """Return the learning rate of ``step``, counted from 1.

    The rate rises linearly to its maximum at the last warm-up step. After that it stays there
    (schedule ``constant``), or falls until it is ``final_share`` of the maximum at ``max_steps``
    (schedules ``linear`` and ``cosine``).
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    steps_after = max(config.max_steps - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / steps_after, 1.0)
    return config.learning_rate * _share(config, progress)


def _share(config: OptimiserConfig, progress: float) -> float:
    """Return rate / highest rate; ``progress`` in (0, 1] is the share of steps after warm-up."""
    match config.schedule:
        case "constant":
            return 1.0
        case "linear":
            falling = 1 - progress
        case "cosine":
            falling = (1 + math.cos(math.pi * progress)) / 2
        case _:
            assert_never(config.schedule)
    return config.final_share + (1 - config.final_share) * falling
