"""What an actor and a driver tell a meter, without Ray."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.ledger.timed_ledger import TimedLedger
from cluster.pool.slot_records import SlotRecord, SlotState
from cluster.pool.slots import ActorSlot
from cluster.telemetry.metrics import (
    BUSY_SHARE,
    COMMIT_SECONDS,
    LEDGER_SECONDS,
    METRICS,
    SAMPLES,
    SEAT_STATE,
    STATE,
    TAGS,
    TASKS_DONE,
    TASKS_IN_HAND,
    Metric,
    MetricKind,
    MetricsObserver,
)
from cluster.telemetry.observing import SilentClusterObserver
from cluster.telemetry.slot_heartbeat import slots_document
from cluster.telemetry.slot_metrics import SlotMetrics
from llmperf_common.ledger.protocol import LedgerAwayError, TaskCounts
from tests.support.factories.dataset_factory import (
    make_failure,
    make_kernel,
    make_result,
    make_timing,
)

TAG_VALUES = dict(zip(TAGS, ("h:1/gpu0", "n1", "h200"), strict=True))


class Recorder:
    """A meter that keeps everything."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, float, dict[str, str]]] = []

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert metric.kind is MetricKind.COUNTER
        self._tell("add", metric, value, tags)

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert metric.kind is MetricKind.GAUGE
        self._tell("set", metric, value, tags)

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert metric.kind is MetricKind.HISTOGRAM
        self._tell("observe", metric, value, tags)

    def of(self, metric: Metric) -> list[tuple[float, dict[str, str]]]:
        """The values of a metric, its tags without those of all."""
        found = []
        for _, name, value, tags in self.told:
            if name == metric.name:
                found.append((value, {key: tags[key] for key in metric.tags}))
        return found

    def _tell(self, how: str, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert set(tags) == {*TAGS, *metric.tags}
        self.told.append((how, metric.name, value, dict(tags)))


def test_names_are_prometheus_names_and_histograms_have_bounds() -> None:
    for one in METRICS:
        assert one.name.startswith("llmperf_")
        assert one.name.replace("_", "").isalpha()
        assert bool(one.boundaries) == (one.kind is MetricKind.HISTOGRAM)
        assert list(one.boundaries) == sorted(set(one.boundaries))


def test_rows_tasks_and_the_way_to_a_commit_are_counted() -> None:
    meter, clock = Recorder(), itertools.count(10.0)
    observer = MetricsObserver(meter, TAG_VALUES, clock_s=lambda: next(clock))
    lease: Any = None
    first = make_result(
        make_kernel(0), [make_timing(), make_timing(), make_timing(), make_failure()]
    )
    second = make_result(make_kernel(1), [make_timing(), make_timing()])
    observer.finished(lease, first)  # at 10
    observer.finished(lease, second)  # at 11
    observer.committed("s", [first, second], 1)  # at 12
    assert meter.of(SAMPLES) == [(5, {"status": "ok"}), (1, {"status": "hang"})]
    assert meter.of(TASKS_DONE) == [(2, {})]
    assert meter.of(COMMIT_SECONDS) == [(2.0, {}), (1.0, {})]
    observer.finished(lease, first)
    observer.lost([0], "x")
    observer.committed("s", [first], 2)
    assert len(meter.of(COMMIT_SECONDS)) == 2


def test_a_report_sets_the_gauges_that_are_known() -> None:
    meter = Recorder()
    document = {
        "tasks_in_hand": 3, "ok_per_s": 1.5, "busy_share": None, "temperature_c": 60.0, "throttled_share": None,
        "state": "drained",
    }  # fmt: skip
    MetricsObserver(meter, TAG_VALUES).heard(document)
    assert meter.of(TASKS_IN_HAND) == [(3.0, {})]
    assert meter.of(BUSY_SHARE) == []
    assert {tags["state"]: value for value, tags in meter.of(STATE)} == {
        "collecting": 0.0, "ended": 0.0, "drained": 1.0, "failed": 0.0,
    }  # fmt: skip


class SomeLedger:
    """A ledger that counts, and is away for everything else."""

    epoch = 7

    def counts(self, tasks: range) -> TaskCounts:
        return TaskCounts(done=1, leased=0, total=len(tasks))

    def __getattr__(self, name: str) -> Any:
        def away(*_: object, **__: object) -> None:
            raise LedgerAwayError(name)

        return away


def test_every_call_of_a_ledger_is_timed_also_when_it_fails() -> None:
    meter = Recorder()
    some: Any = SomeLedger()
    ledger = TimedLedger(some, MetricsObserver(meter, TAG_VALUES).ledger_called)
    assert ledger.epoch == 7
    assert ledger.counts(range(4)).total == 4
    holder: Any = None
    for name, use in {
        "claim": lambda: ledger.claim(holder=holder, tasks=range(1), limit=1, ttl_s=1),
        "renew": lambda: ledger.renew([], ttl_s=1),
        "release": lambda: ledger.release([]),
        "commit": lambda: ledger.commit(shards=[], leases=[]),
        "unpublished": ledger.unpublished,
        "check_names": lambda: ledger.check_names([], checker="c", number=1, after=0),
        "mark_published": lambda: ledger.mark_published([]),
        "elect_publisher": lambda: ledger.elect_publisher(holder=holder, ttl_s=1),
        "holdings": lambda: ledger.holdings(range(1)),
        "report": lambda: ledger.report("w", "{}"),
        "workers": ledger.workers,
    }.items():
        with pytest.raises(LedgerAwayError, match=name):
            use()
    calls = [tags["call"] for _, tags in meter.of(LEDGER_SECONDS)]
    assert calls == [
        "counts", "claim", "renew", "release", "commit", "unpublished", "check_names", "mark_published", "elect_publisher",
        "holdings", "report", "workers",
    ]  # fmt: skip
    assert all(0 <= seconds < 5 for seconds, _ in meter.of(LEDGER_SECONDS))


def test_the_driver_tells_of_drained_slots_every_two_seconds() -> None:
    slot = ActorSlot(
        node_id="abcdef1", host="h", index=0, num_on_node=1, on_gpu=True, device="auto"
    )

    pool: Any = SimpleNamespace(
        slots={slot: SlotRecord(slot=slot, state=SlotState.DRAINED)}, is_over=False
    )
    meter, times_s = Recorder(), iter((0.0, 0.0, 0.5, 1.9, 1.95))
    observer = SlotMetrics(SilentClusterObserver(), meter, clock_s=lambda: next(times_s))
    for _ in range(3):
        observer.stands(pool)
    assert len(meter.told) == len(SlotState)
    assert {tags["state"] for value, tags in meter.of(SEAT_STATE) if value} == {"drained"}
    assert meter.told[0][3]["seat"] == "h:abcdef/gpu0"
    pool.is_over = True
    observer.stands(pool)
    assert len(meter.told) == 2 * len(SlotState)


def test_the_driver_names_the_slots_that_do_not_collect() -> None:
    slots = {}
    for number in range(80):
        slot = ActorSlot(
            node_id=f"n{number:05d}",
            host="h" * 30,
            index=0,
            num_on_node=1,
            on_gpu=True,
            device="auto",
        )
        state = SlotState.DRAINED if number < 40 else SlotState.RUNNING
        slots[slot] = SlotRecord(
            slot=slot, state=state, why="throttled in 80%" + " x" * 500 + "\nmore"
        )
    pool: Any = SimpleNamespace(slots=slots, missing_labels=("no node has the labels pool=x",))
    document = slots_document(pool)
    assert document["seats"] == {"drained": 40, "running": 40}
    assert len(document["not_collecting"]) == 10
    assert document["not_collecting"][0]["why"].startswith("throttled in 80%")
    assert document["missing_labels"] == ["no node has the labels pool=x"]
    assert len(json.dumps(document)) < 3000
