"""The metrics of the driver: in which state each slot is.

Owns an observer around the one that shows the run. An actor that has ended tells nothing any more; that it was drained is
known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.collect import ClusterObserver
from cluster.pool.pool import ActorPool, SlotState
from cluster.telemetry.metrics import SEAT_STATE, Meter
from llmperf_common.records import Device
from workers.plan.plan import Plan

_INTERVAL_S = 2.0


class SlotMetrics:
    """Passes everything on to an observer and tells a meter how the slots are."""

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
        """Something that an operator should know."""
        self._observer.say(text)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """The plan is made and actors begin."""
        self._observer.began(plan, devices, num_tasks_done)

    def stands(self, pool: ActorPool) -> None:
        """How all actors are now."""
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
