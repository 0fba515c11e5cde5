"""Logs of a running fit: a JSONL file, TensorBoard events, lines for the user.

Owns the record of a moment and its three forms. ``loop.py`` decides when a record is made; only the
first rank makes records. A resumed fit continues the files: records of steps after the resumed
checkpoint are dropped.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from llmperf_common.files.replacing import replacing
from trainer.interface import Progress

LOG_FILE = "fit.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
_SECONDS_BETWEEN_LINES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a fit at a step; means and rates are over the steps since the last moment.

    Attributes:
        step: number of optimiser steps done, from 1.
        max_steps: last step of the fit unless it stops early.
        loss: mean training loss of the predicted times.
        validation_loss: mean loss on the validation rows; None if this step had no validation.
        learning_rate: learning rate of this step.
        gradient_norm: norm of this step's gradient, before clipping.
        samples_per_s: launches per second, over all ranks.
        tokens_per_s: tokens (without padding) per second, over all ranks.
        mfu: used share of the devices' peak; None if operations or peak are unknown.
        memory_bytes: peak memory of this process: allocated on the GPU, or resident on a CPU.
        gpu_clock_mhz: current clock of the GPU; None without a GPU or NVML.
        seconds: time spent fitting so far, over all starts.
    """

    step: int
    max_steps: int
    loss: float
    validation_loss: float | None
    learning_rate: float
    gradient_norm: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float | None
    memory_bytes: int
    gpu_clock_mhz: int | None
    seconds: float


class Observer(Protocol):
    """Receives the moments of a fit, in order."""

    def show(self, moment: Moment) -> None:
        """Record a moment."""
        ...

    def close(self) -> None:
        """Write all pending records."""
        ...


class JsonLines:
    """A JSONL file with one object for each moment; each line is flushed at once.

    Args:
        path: the file; its records of steps after ``after_step`` are dropped.
        after_step: the step that the fit resumes from; 0 begins a new file.
    """

    def __init__(self, path: Path, *, after_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for step, line in _lines(path) if step <= after_step]
        with replacing(path) as beside:
            beside.write_text("".join(kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def show(self, moment: Moment) -> None:
        """Append a line."""
        self._file.write(json.dumps(asdict(moment)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """TensorBoard events with the numbers of each moment.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def show(self, moment: Moment) -> None:
        """Write the moment's numbers as scalars."""
        for name, value in asdict(moment).items():
            if name not in {"step", "max_steps"} and value is not None:
                self._writer.add_scalar(name, value, moment.step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class ProgressLine:
    """A line of progress for the user, at most once a second, with rate and remaining time.

    Args:
        progress: receives the line.
        clock: returns monotonic seconds.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock = clock
        self._said_at = -_SECONDS_BETWEEN_LINES
        self._previous: Moment | None = None
        self._validation = ""

    def show(self, moment: Moment) -> None:
        """Report the moment, unless the last report is less than a second old."""
        if moment.validation_loss is not None:
            self._validation = f", validation {moment.validation_loss:.4f}"
        now = self._clock()
        is_last = moment.step == moment.max_steps
        if now - self._said_at < _SECONDS_BETWEEN_LINES and not is_last:
            return
        self._said_at = now
        self._progress(
            f"step {moment.step}/{moment.max_steps}: loss {moment.loss:.4f}{self._validation}, "
            f"{moment.samples_per_s:,.0f} samples/s, {moment.tokens_per_s:,.0f} tokens/s"
            f"{self._remaining(moment)}"
        )
        self._previous = moment

    def close(self) -> None:
        """Do nothing."""

    def _remaining(self, moment: Moment) -> str:
        if self._previous is None or moment.step <= self._previous.step:
            return ""
        pace = (moment.seconds - self._previous.seconds) / (moment.step - self._previous.step)
        return f", {_duration(pace * (moment.max_steps - moment.step))} left"


def open_observers(
    folder: Path, *, tensorboard: bool, progress: Progress, after_step: int
) -> list[Observer]:
    """Return the observers of a fit that resumes from ``after_step`` (0: a new fit).

    TensorBoard is left out if it is not installed.
    """
    observers: list[Observer] = [
        JsonLines(folder / LOG_FILE, after_step=after_step),
        ProgressLine(progress),
    ]
    if tensorboard:
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (half a second)

            observers.append(
                TensorBoard(
                    SummaryWriter(
                        str(folder / TENSORBOARD_FOLDER),
                        purge_step=after_step + 1 if after_step else None,
                    )
                )
            )
    return observers


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield step and text of each line of a log; a line that a killed process cut is left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            step = int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
        if line.endswith("\n"):
            yield step, line


def _duration(seconds: float) -> str:
    """Return a duration as text.

    >>> _duration(59), _duration(150), _duration(7300)
    ('59 s', '2 min 30 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
