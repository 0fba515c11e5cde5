"""What the launches of a prediction execute: counted on a CPU device, where there is one and the model reads it.

Owns when it is counted, for how long, and what is said where it is not. The counting itself runs in a child that is
killed after its time (``workers/work``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from llmperf.prediction.analysing import Analyst
from llmperf_common.config import ConfigError
from llmperf_common.features.work import Work
from llmperf_common.records import Kernel, LaunchConfig
from llmperf_common.store.files.filesystem import StoreError
from trainer.prediction.request import CountedLaunches

WORK_TIMEOUT_S = 20.0
"""Seconds for the launches of one kernel that are asked about together. Then the child is killed,
and its results so far are used."""

_MOST_LAUNCHES = 512
"""Launches counted for one answer; the others are predicted without work."""


class WorkMode(StrEnum):
    """Whether launches are counted for a prediction."""

    AUTO = "auto"
    OFF = "off"

    @classmethod
    def of(cls, text: str) -> WorkMode:
        """Return the mode of its name.

        Raises:
            ConfigError: There is none; the message names them.
        """
        try:
            return cls(text)
        except ValueError:
            raise ConfigError(
                f"work {text!r}: use auto (count where a CPU OpenCL device can) or off"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounter:
    """Counts launches of kernels on the device that ``analyst`` probes on."""

    analyst: Analyst

    def of(self, kernel: Kernel) -> Callable[[Sequence[LaunchConfig]], CountedLaunches]:
        """Return what counts launches of ``kernel``."""
        return lambda launches: self._counted(kernel, launches)

    def _counted(self, kernel: Kernel, launches: Sequence[LaunchConfig]) -> CountedLaunches:
        from workers.work.children import count_work  # noqa: PLC0415  (needed by few)

        none: list[Work | None] = [None] * len(launches)
        device = self.analyst.cpu_device("to count what the launch executes")
        if isinstance(device, str):
            return CountedLaunches(work=none, why=device)
        self.analyst.progress(f"counting what kernel {kernel.name!r} executes on {device.name}")
        try:
            found = count_work(kernel, launches[:_MOST_LAUNCHES], device, timeout_s=WORK_TIMEOUT_S)
        except (StoreError, OSError) as error:
            return CountedLaunches(work=none, why=str(error))
        work = [one if isinstance(one, Work) else None for one in found]
        failures = [one for one in found if not isinstance(one, Work)]
        why = " ".join(failures[0].detail.split())[:240] if failures else ""
        if len(launches) > _MOST_LAUNCHES:
            why = why or f"more than {_MOST_LAUNCHES} launches were asked about at once"
        return CountedLaunches(work=[*work, *none[len(work) :]], why=why)
