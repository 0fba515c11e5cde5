"""When a GPU is drained: its times are no longer what they were, or nothing runs on it any more.

Owns the rules; an observer of the loop that asks the worker to stop. What NVML forbids after a fault is ``DeviceLostError``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from cluster.config import ClusterConfig
from llmperf_common.failures import Failure, FailureCode
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Sample, TaskResult
from workers.observers import SilentObserver

_FEWEST_SAMPLES = 500
_SECONDS_LOOKED_AT = 120.0
"""A few kernels in a row that draw all the power a card may have throttle it for a second: that is theirs."""
_READINGS = 5


class DrainRule(SilentObserver):
    """Watches the results of one device and tells once why it should be drained.

    Args:
        config: the thresholds.
        drain: is told the reason.
        clock_s: seconds that nobody sets.
    """

    def __init__(
        self,
        config: ClusterConfig,
        drain: Callable[[str], None],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._config = config
        self._drain = drain
        self._throttled: deque[tuple[float, bool]] = deque()
        """When, in seconds, and whether; of the last two minutes, or longer where these have few samples."""
        self._first_ns: list[float] = []
        self._last_ns: deque[float] = deque(maxlen=_READINGS)
        self._faulty_tasks = 0
        self._has_told = False

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result."""
        del lease
        self._note_throttling(result.samples)
        for reading in result.sentinel:
            if len(self._first_ns) < _READINGS:
                self._first_ns.append(reading.median_ns)
            self._last_ns.append(reading.median_ns)
        self._faulty_tasks = self._faulty_tasks + 1 if _only_faults(result.samples) else 0
        reason = self._reason()
        if reason and not self._has_told:
            self._has_told = True
            self._drain(reason)

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

    def _reason(self) -> str | None:
        config = self._config
        if self._faulty_tasks >= config.drain_faulty_tasks:
            return f"{self._faulty_tasks} tasks in a row ended by device faults"
        if len(self._throttled) >= _FEWEST_SAMPLES and self._seconds_seen() >= _SECONDS_LOOKED_AT:
            share = sum(was for _, was in self._throttled) / len(self._throttled)
            if share > config.drain_throttled_share:
                return (
                    f"throttled in {share:.0%} of its last {len(self._throttled):,} samples "
                    f"({self._seconds_seen():.0f} s)"
                )
        if len(self._first_ns) == _READINGS == len(self._last_ns):
            drift = median(self._last_ns) / median(self._first_ns) - 1
            if drift > config.drain_sentinel_drift:
                return f"its sentinel kernel takes {drift:.0%} longer than at first"
        return None


def _only_faults(samples: Sequence[Sample]) -> bool:
    codes = {one.outcome.code if isinstance(one.outcome, Failure) else None for one in samples}
    return None not in codes and FailureCode.DEVICE_FAULT in codes
