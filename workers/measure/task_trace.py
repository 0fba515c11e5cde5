"""Where the time of a task went: waiting, loading, holding the device, launching.

Owns the sums and their form in the event stream, which
``benchmarks/collecting/where_time_goes.py`` reads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from llmperf_common.awake_clock import awake_s
from llmperf_common.records import Outcome, Timing
from workers.measure.timing import ONE_WARMUP_NS

_MOST_TIMES_LAUNCHED = 4
_MOST_BESIDE_S = 0.05
"""Maximum seconds that count against a task's budget for one config beyond the multiple of its
launch time (``_MOST_TIMES_LAUNCHED``). Filling large buffers takes up to this long."""


def time_in_launches_s(timing: Timing, *, num_warmups: int) -> float:
    """Return how long a timed config's launches ran, warm-ups included."""
    warm_ns = sum(timing.time_ns) * timing.launches_per_reading
    num_further = 0 if timing.first_ns > ONE_WARMUP_NS else num_warmups - 1
    return (
        timing.first_ns + num_further * _median_ns(timing) + warm_ns + sum(timing.cold_ns)
    ) / 1e9


def _median_ns(timing: Timing) -> float:
    return sorted(timing.time_ns)[len(timing.time_ns) // 2]


def share_charged_s(wall_s: float, launched_s: float) -> float:
    """Return how much of a config's wall time, s, counts against its task's budget.

    The host can make a config take far longer than its launches: a context that opens or ends on
    any of the host's GPUs delays a task's first launch by a second. Such delays must not cost a
    task its configs.

    >>> share_charged_s(0.3, 0.25), round(share_charged_s(1.0, 0.001), 3)
    (0.3, 0.054)
    """
    return min(wall_s, _MOST_TIMES_LAUNCHED * launched_s + _MOST_BESIDE_S)


@dataclass(slots=True)
class _Share:
    num_configs: int = 0
    wall_s: float = 0.0
    launched_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class TaskTrace:
    """Where the time of one task went, recorded while it runs.

    Points in time are seconds of the monotonic clock, None until known. If the task's child dies,
    another child continues the task. ``holds`` lists every hold of the device lock, as (began,
    ended), and the sums over configs cover all holds; ``loaded_s`` belongs to the last child.
    """

    num_warmups: int
    planned_s: float | None = None
    """When the task had its launch configs, so that its access check and its build could begin."""
    checked_s: float | None = None
    """When its access check had ended; None if there was none."""
    built_s: float | None = None
    sent_s: float | None = None
    loaded_s: float | None = None
    holds: list[tuple[float, float]] = field(default_factory=list)
    buffers_s: float = 0.0
    """Seconds for allocating and releasing buffers, in the holds whose child did not die."""
    charged_s: float = 0.0
    """Seconds of its configs that count against ``limits.task_budget_s``."""
    processor: int | None = None
    """Host processor of the latest launches; None: any."""
    _began_s: float | None = None
    _awake_began_s: float = 0.0
    """When this process heard that the current hold began, by ``awake_s``."""
    _held_before_s: float = 0.0
    """Seconds of the holds that have ended, by ``awake_s``."""
    _by_decade: dict[str, _Share] = field(default_factory=lambda: defaultdict(_Share))

    @property
    def hold_began_s(self) -> float | None:
        """When the current hold of the device began; None if there is none."""
        return self._began_s

    def begin_hold(self, began_s: float) -> None:
        """Note that the task has got the device."""
        self._began_s, self._awake_began_s = began_s, awake_s()

    def held_s(self, now_s: float) -> float:
        """Return for how many seconds the task has held the device; 0.0 if it does not hold it.

        Time in which this process was stopped does not count.

        Args:
            now_s: the time of ``awake_s``.
        """
        if self._began_s is None:
            return 0.0
        return self._held_before_s + now_s - self._awake_began_s

    def end_hold(self, ended_s: float) -> None:
        """Note that the task has released the device; no effect if it was not held."""
        if self._began_s is not None:
            self.holds.append((self._began_s, ended_s))
            self._held_before_s += awake_s() - self._awake_began_s
            self._began_s = None

    def note_config(
        self, outcome: Outcome, began_s: float, ended_s: float, *, launch_ns: float | None = None
    ) -> None:
        """Add a config that was launched; ``launch_ns`` may also be known if it failed."""
        decade, launched_s = "failed", (launch_ns or 0.0) / 1e9
        if isinstance(outcome, Timing):
            decade = f"1e{math.floor(math.log10(max(_median_ns(outcome), 1.0)))}"
            launched_s = time_in_launches_s(outcome, num_warmups=self.num_warmups)
        self.charged_s += share_charged_s(ended_s - began_s, launched_s)
        share = self._by_decade[decade]
        share.num_configs += 1
        share.wall_s += ended_s - began_s
        share.launched_s += launched_s if isinstance(outcome, Timing) else 0.0

    def charge_hang(self, seconds: float) -> None:
        """Charge the whole time of a config that ran until its child was killed."""
        self.charged_s += seconds

    def as_event(self) -> dict[str, Any]:
        """Return the event's fields.

        ``decades``: for each power of ten of the launch time in ns, the number of configs, their
        wall time in s and their launch time in s.
        """
        return {
            "planned_s": self.planned_s,
            "checked_s": self.checked_s,
            "built_s": self.built_s,
            "sent_s": self.sent_s,
            "loaded_s": self.loaded_s,
            "turns": self.holds,
            "buffers_s": round(self.buffers_s, 6),
            "processor": self.processor,
            "decades": {
                decade: [share.num_configs, round(share.wall_s, 6), round(share.launched_s, 6)]
                for decade, share in sorted(self._by_decade.items())
            },
        }
