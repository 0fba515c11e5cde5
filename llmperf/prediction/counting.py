"""Counts, on a CPU device, the work of the launches to predict, if the model uses these counts.

Decides when and how long work is counted, and owns the message if it is not counted. The counting
runs in a child process that is killed after a time limit (``workers/work``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmperf.prediction.analysing import Analyst
from llmperf_common.failures import Failure, FailureCode
from llmperf_common.features.work import Work
from llmperf_common.files.visible import shortened
from llmperf_common.records import Kernel, LaunchConfig
from llmperf_common.store.files.filesystem import StoreError
from trainer.prediction.request import CountedLaunches

WORK_TIMEOUT_S = 20.0
"""Maximum number of seconds for counting ``_LAUNCHES_AT_ONCE`` launches. After this time the child
process is killed, and the results that it has reported are used."""

_LAUNCHES_AT_ONCE = 512
"""Maximum number of launches that one child process counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounter:
    """Counts the work of launches on the CPU device of ``analyst``."""

    analyst: Analyst

    def of(self, kernel: Kernel) -> Callable[[Sequence[LaunchConfig]], CountedLaunches]:
        """Return a function that counts the work of launches of ``kernel``."""
        return lambda launches: self._counted(kernel, launches)

    def _counted(self, kernel: Kernel, launches: Sequence[LaunchConfig]) -> CountedLaunches:
        from workers.work.children import count_work  # noqa: PLC0415  (needed by few)

        none: list[Work | None] = [None] * len(launches)
        device = self.analyst.cpu_device("to count the launch's operations and accesses")
        if isinstance(device, str):
            return CountedLaunches(work=none, why=device)
        self.analyst.progress(
            f"counting the work of kernel {shortened(kernel.name)!r} on {device.name}"
        )
        found: list[Work | Failure] = []
        why = ""
        for start in range(0, len(launches), _LAUNCHES_AT_ONCE):
            part = launches[start : start + _LAUNCHES_AT_ONCE]
            try:
                found += count_work(kernel, part, device, timeout_s=WORK_TIMEOUT_S)
            except (StoreError, OSError) as error:
                why = str(error)
                break
            if not any(isinstance(one, Work) for one in found[start:]):
                break  # most likely the next launches cannot be counted either
        work = [one if isinstance(one, Work) else None for one in found]
        failures = [one for one in found if not isinstance(one, Work)]
        if failures:
            why = " ".join(_words(failures[0]).split())[:240]
        return CountedLaunches(work=[*work, *none[len(work) :]], why=why)


def _words(failure: Failure) -> str:
    """Return the detail of a failure; of a traceback only the last line, which names the error."""
    if failure.code is not FailureCode.INTERNAL_ERROR:
        return failure.detail
    lines = failure.detail.strip().splitlines() or ["unknown"]
    return f"internal error: {lines[-1]}"
