"""The rules for draining a GPU that has become slow, is throttled, or faults in every task.

Draining ends the collecting on a GPU, usually for the rest of the run. Owns the rules, as an
observer of the collect loop that asks the worker to stop. If NVML reports a GPU as unhealthy after
a fault, ``DeviceLostError`` handles this, not this module.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from cluster.config import ClusterConfig
from cluster.pool.reports import DrainCause
from llmperf_common.failures import Failure, FailureCode
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Sample, TaskResult
from workers.collect.observers import SilentObserver
from workers.device.interface import DeviceRef

_logger = logging.getLogger(__name__)

_FEWEST_SAMPLES = 500
_SECONDS_LOOKED_AT = 120.0
"""Length in seconds of the period whose samples are judged. In a shorter period a healthy GPU could
look throttled, because a few power-hungry kernels in a row throttle any GPU for a second."""
_READINGS = 5


class DrainRule(SilentObserver):
    """Watches the results of one device and reports once that it should be drained, and why.

    Args:
        config: the thresholds.
        drain: receives the cause and the reason in words.
        baseline_ns: the sentinel's first time, if an earlier actor measured it. One reading then
            suffices to see that the device is still slow.
        drains_for_drift: whether a slower sentinel drains the device. It is False on a CPU device,
            which every other process slows down; a slower sentinel is then only logged.
        clock_s: returns seconds of a monotonic clock, which is never set back.
    """

    def __init__(
        self,
        config: ClusterConfig,
        drain: Callable[[DrainCause, str], None],
        *,
        baseline_ns: float | None = None,
        drains_for_drift: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._config = config
        self._drain = drain
        self._throttled: deque[tuple[float, bool]] = deque()
        """For each sample of the last two minutes, or of the last 500 samples if these took longer:
        its time in s, and whether the device was throttled."""
        self._first_ns: list[float] = []
        self._is_on_trial = baseline_ns is not None
        self._drains_for_drift = drains_for_drift
        self._has_logged_drift = False
        self.baseline_ns = baseline_ns
        """The sentinel's first time in ns; None before five readings."""
        self.is_steady = False
        """Whether the sentinel's time was ever within the limit of its baseline."""
        self._last_ns: deque[float] = deque(maxlen=_READINGS)
        self._faulty_tasks = 0
        self._has_told = False

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """Judge the device by a task's result."""
        del lease
        self._note_throttling(result.samples)
        for reading in result.sentinel:
            self._note_sentinel(reading.median_ns)
        self._faulty_tasks = self._faulty_tasks + 1 if _only_faults(result.samples) else 0
        found = self._found()
        if found and not self._has_told:
            self._has_told = True
            self._drain(*found)

    def _note_sentinel(self, time_ns: float) -> None:
        self._last_ns.append(time_ns)
        if self.baseline_ns is None:
            self._first_ns.append(time_ns)
            if len(self._first_ns) == _READINGS:
                self.baseline_ns = median(self._first_ns)

    def _note_throttling(self, samples: Sequence[Sample]) -> None:
        now_s = self._clock_s()
        for one in samples:
            if not isinstance(one.outcome, Failure) and one.outcome.throttled is not None:
                self._throttled.append((now_s, one.outcome.throttled))
        while len(self._throttled) > _FEWEST_SAMPLES and (
            self._throttled[-1][0] - self._throttled[1][0] >= _SECONDS_LOOKED_AT
        ):
            self._throttled.popleft()

    def _seconds_seen(self) -> float:
        return self._throttled[-1][0] - self._throttled[0][0]

    def _found(self) -> tuple[DrainCause, str] | None:
        config = self._config
        if self._faulty_tasks >= config.drain_faulty_tasks:
            reason = f"{self._faulty_tasks} tasks in a row ended by device faults"
            return DrainCause.FAULTS, reason
        if len(self._throttled) >= _FEWEST_SAMPLES and self._seconds_seen() >= _SECONDS_LOOKED_AT:
            share = sum(was for _, was in self._throttled) / len(self._throttled)
            if share > config.drain_throttled_share:
                return DrainCause.THROTTLING, (
                    f"throttled in {share:.0%} of its last {len(self._throttled):,} samples "
                    f"({self._seconds_seen():.0f} s)"
                )
        drift = self._too_much_drift()
        if drift is not None and self._drains_for_drift:
            reason = f"its sentinel kernel takes {drift:.0%} longer than at first"
            return DrainCause.DRIFT, reason
        if drift is not None and not self._has_logged_drift:
            self._has_logged_drift = True
            _logger.warning(
                "the sentinel kernel takes %.0f %% longer than at first, perhaps because other "
                "processes use the CPU; collection goes on, because a CPU device is never drained "
                "for this reason",
                100 * drift,
            )
        return None

    def _too_much_drift(self) -> float | None:
        """Return the share by which the sentinel is slower than at first; None within the limit."""
        is_judged = len(self._last_ns) == _READINGS or (self._is_on_trial and self._last_ns)
        if self.baseline_ns is None or not is_judged:
            return None
        drift = median(self._last_ns) / self.baseline_ns - 1
        if drift > self._config.drain_sentinel_drift:
            return drift
        self.is_steady, self._is_on_trial = True, False
        return None


def drains_for_drift(ref: DeviceRef) -> bool:
    """Whether a slower sentinel drains a device; not for a CPU, which all processes share.

    >>> names = ("cuda:0", "pocl", "cpu")
    >>> refs = [DeviceRef(selector=name, platform="", name="") for name in names]
    >>> [drains_for_drift(ref) for ref in refs]
    [True, False, False]
    """
    return ref.selector not in ("cpu", "pocl")


def _only_faults(samples: Sequence[Sample]) -> bool:
    codes = {one.outcome.code if isinstance(one.outcome, Failure) else None for one in samples}
    return None not in codes and FailureCode.DEVICE_FAULT in codes
