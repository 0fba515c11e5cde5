"""The metrics of the driver: the state of each slot.

An actor that has ended reports nothing more, so only the driver can report that its slot was
drained (given up). Owns an observer, which wraps the observer that shows the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.collect import ClusterObserver
from cluster.pool.pool import ActorPool
from cluster.pool.slot_records import SlotState
from cluster.telemetry.metrics import SEAT_STATE, Meter
from llmperf_common.records import Device
from workers.plan.plan import Plan

_INTERVAL_S = 2.0


class SlotMetrics:
    """Passes every call on to an observer and sets the metrics of the slots."""

    def __init__(
        self,
        observer: ClusterObserver,
        meter: Meter,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._meter = meter
        self._clock_s = clock_s
        self._after_s = clock_s()

    def say(self, text: str) -> None:
        """Pass on a message for the operator."""
        self._observer.say(text)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """Pass on the start of the run."""
        self._observer.began(plan, devices, num_tasks_done)

    def stands(self, pool: ActorPool) -> None:
        """Pass the state of the actors on, and set the metrics if they are due."""
        self._observer.stands(pool)
        now_s = self._clock_s()
        if now_s < self._after_s and not pool.is_over:
            return
        self._after_s = now_s + _INTERVAL_S
        for slot, record in pool.slots.items():
            device = record.device
            tags = {
                "seat": slot.name,
                "node": slot.node_id,
                "device_class": device.device_class if device else "",
            }
            for state in SlotState:
                is_it = float(record.state is state)
                self._meter.set(SEAT_STATE, is_it, {**tags, "state": state.value})
