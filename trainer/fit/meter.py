"""The speed of a fit: counts between two moments, and the device's memory and clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from trainer.fit.observers import Moment


@dataclass(slots=True, kw_only=True)
class Meter:
    """Sums over the steps since the last ``Moment``.

    Attributes:
        max_steps: last step of the fit unless it stops early.
        device: the device whose memory and clock are read.
        peak_flops: floating-point operations per second of all ranks' devices together; None: the
            moments have no MFU.
        seconds_before: time that earlier starts spent fitting.
        clock: returns monotonic seconds.
    """

    max_steps: int
    device: torch.device
    peak_flops: float | None
    seconds_before: float
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _since: float = field(init=False)
    _sums: list[float] = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._started = self._since = self.clock()
        self._sums = [0.0] * 5

    @property
    def seconds(self) -> float:
        """Seconds spent fitting so far, over all starts."""
        return self.seconds_before + self.clock() - self._started

    def add(self, *, loss: float, launches: float, tokens: float, flops: float) -> None:
        """Count a step."""
        for place, value in enumerate((loss, launches, tokens, flops, 1.0)):
            self._sums[place] += value

    def moment(
        self,
        step: int,
        *,
        learning_rate: float,
        gradient_norm: float,
        validation_loss: float | None,
    ) -> Moment:
        """Return the moment after ``step``, and reset the sums."""
        loss, launches, tokens, flops, steps = self._sums
        now = self.clock()
        elapsed = max(now - self._since, 1e-9)
        self._since, self._sums = now, [0.0] * 5
        return Moment(
            step=step,
            max_steps=self.max_steps,
            loss=loss / steps,
            validation_loss=validation_loss,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            samples_per_s=launches / elapsed,
            tokens_per_s=tokens / elapsed,
            mfu=flops / elapsed / self.peak_flops if flops and self.peak_flops else None,
            memory_bytes=_memory_bytes(self.device),
            gpu_clock_mhz=_clock_mhz(self.device),
            seconds=self.seconds,
        )


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _clock_mhz(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.clock_rate(device)  # needs NVML (nvidia-ml-py)
    except (ImportError, RuntimeError):
        return None
