"""The pool on a cluster in memory: what it starts, starts again, drains, and tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config import ClusterCollectConfig, ClusterConfig, NodePool
from cluster.pool.pool import ActorPool
from cluster.pool.reports import ActorReport, ActorSpec, ActorState, DrainCause, FailureKind
from cluster.pool.runtime import ActorGone
from cluster.pool.slot_records import SlotState
from cluster.pool.slots import ActorSlot, ClusterNode, matches, slots_of, unmatched_pools
from cluster.telemetry.observing import lines_of
from cluster.telemetry.slot_heartbeat import slots_document
from llmperf_common.records import Device
from tests.support.factories.dataset_factory import make_device
from workers.collect.loop_interfaces import EndReason
from workers.corpus.read import Corpus

DEVICE = make_device()
CORPUS = Corpus(kernels=(), sha256="c", skipped=())
NODES = (
    ClusterNode(node_id="aaaaaaaa", host="h1", labels={"pool": "A"}, num_gpus=2),
    ClusterNode(node_id="bbbbbbbb", host="h2", labels={"pool": "B"}, num_gpus=1),
)


class FakeActor:
    """Tells what the test gives it."""

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.next: ActorReport | ActorGone | None = None
        self.asked: list[str] = []

    def poll(self) -> ActorReport | ActorGone | None:
        told, self.next = self.next, None
        return told

    def begin(self, corpus: Corpus, run_id: str) -> None:
        del corpus
        self.asked.append(f"begin {run_id}")

    def stop(self, *, drop: bool) -> None:
        self.asked.append(f"stop drop={drop}")

    def kill(self) -> None:
        self.asked.append("kill")

    def tell(self, state: ActorState, **fields: object) -> None:
        defaults: dict[str, object] = {"device": DEVICE, "worker_id": "h/1"}
        self.next = ActorReport(state=state, **{**defaults, **fields})  # type: ignore[arg-type]


class FakeCluster:
    """Nodes come and go as the test says."""

    def __init__(self, nodes: tuple[ClusterNode, ...] = NODES) -> None:
        self.there = nodes
        self.actors: list[FakeActor] = []

    def nodes(self) -> tuple[ClusterNode, ...]:
        return self.there

    def start(self, spec: ActorSpec) -> FakeActor:
        self.actors.append(FakeActor(spec))
        return self.actors[-1]


class Bench:
    """A pool on a fake cluster, with a clock."""

    def __init__(self, config: ClusterConfig | None = None, *, starts: bool = True) -> None:
        self.cluster = FakeCluster()
        self.said: list[str] = []
        self.now_s = 0.0
        self.pool = ActorPool(
            self.cluster,
            config or ClusterConfig(scan_interval_s=1.0, restart_delay_s=2.0, max_restarts=2),
            spec_of=lambda slot: ActorSpec(
                slot=slot,
                location="/data",
                ledger="redis://h",
                state_folder=Path("/s"),
                config=ClusterCollectConfig(),
                files_sha256="0",
            ),
            device="auto",
            say=self.said.append,
        )
        if starts:
            self.step()

    def step(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        self.pool.step(self.now_s)

    @property
    def actors(self) -> list[FakeActor]:
        return self.cluster.actors

    def states(self) -> list[SlotState]:
        return [record.state for record in self.pool.slots.values()]

    def all_open(self, classes: tuple[str, ...] = (DEVICE.device_class,)) -> None:
        for actor in self.actors:
            actor.tell(ActorState.OPEN)
        self.step()
        self.pool.begin(CORPUS, "run", classes)

    def open_first_two(self) -> None:
        """The third's GPU is another job's."""
        for actor in self.actors[:2]:
            actor.tell(ActorState.OPEN)
        self.step()
        self.pool.begin(CORPUS, "run", [DEVICE.device_class])


def test_an_actor_on_every_gpu() -> None:
    bench = Bench()
    assert [a.spec.slot.name for a in bench.actors] == [
        "h1:aaaaaa/gpu0", "h1:aaaaaa/gpu1", "h2:bbbbbb/gpu0",
    ]  # fmt: skip
    assert not bench.pool.is_settled
    bench.all_open()
    assert bench.pool.is_settled
    assert [a.asked for a in bench.actors] == [["begin run"]] * 3
    for actor in bench.actors:
        actor.tell(ActorState.ENDED, reason=EndReason.COMPLETE, statuses={"ok": 5})
    bench.step()
    assert bench.pool.is_over
    assert bench.pool.statuses == {"ok": 15}


def test_the_dead_are_started_again_and_their_rows_still_count() -> None:
    bench = Bench()
    bench.all_open()
    first = bench.actors[0]
    first.tell(ActorState.COLLECTING, statuses={"ok": 7, "hang": 1}, num_tasks_done=1)
    bench.step()
    first.next = ActorGone(why="killed by SIGKILL")
    bench.step()
    assert "its actor died and is started again: killed by SIGKILL" in bench.said[-1]
    assert len(bench.actors) == 3, "not before restart_delay_s"
    bench.step(2.5)
    assert len(bench.actors) == 4
    assert bench.actors[3].spec.slot == first.spec.slot
    bench.actors[3].tell(ActorState.OPEN)
    bench.step()
    assert bench.actors[3].asked == ["begin run"]
    bench.actors[3].tell(ActorState.COLLECTING, statuses={"ok": 2})
    bench.step()
    assert bench.pool.statuses == {"ok": 9, "hang": 1}


def test_a_slot_whose_actors_die_at_once_is_drained() -> None:
    bench = Bench()
    bench.all_open()
    for _ in range(3):
        bench.actors[-1 if len(bench.actors) > 3 else 0].next = ActorGone(why="no memory")
        bench.step()
        bench.step(2.5)
    assert bench.states() == [SlotState.DRAINED, SlotState.RUNNING, SlotState.RUNNING]
    assert "drained: its actor died 3 times in a row: no memory" in bench.said[-1]
    assert len(bench.actors) == 5


def test_a_finished_task_makes_the_count_of_deaths_begin_anew() -> None:
    bench = Bench()
    bench.all_open()
    for _ in range(5):
        actor = bench.actors[-1] if len(bench.actors) > 3 else bench.actors[0]
        actor.tell(ActorState.COLLECTING, num_tasks_done=1)
        bench.step()
        actor.next = ActorGone(why="killed")
        bench.step()
        bench.step(2.5)
    assert SlotState.DRAINED not in bench.states()


@pytest.mark.parametrize(
    "kind", [FailureKind.DEVICE, FailureKind.FOREIGN, FailureKind.NO_BUILD, FailureKind.CHANGED]
)
def test_a_device_or_folder_that_cannot_be_used_is_not_tried_again(kind: FailureKind) -> None:
    bench = Bench()
    bench.actors[0].tell(ActorState.FAILED, kind=kind, detail="lost", device=None)
    bench.step()
    bench.step(100)
    assert bench.states()[0] is SlotState.DRAINED
    assert len(bench.actors) == 3
    assert bench.said == ["h1:aaaaaa/gpu0: drained: lost"]


def test_the_last_of_its_class_is_started_again_when_the_others_are_done() -> None:
    bench = Bench()
    other = make_device(1, "a100")
    for actor in bench.actors[:2]:
        actor.tell(ActorState.OPEN)
    bench.actors[2].tell(ActorState.OPEN, device=other)
    bench.step()
    bench.pool.begin(CORPUS, "run", [DEVICE.device_class, "a100"])
    for actor in bench.actors[:2]:
        actor.tell(ActorState.ENDED, reason=EndReason.COMPLETE)
    bench.actors[2].next = ActorGone(why="killed")
    bench.step()
    bench.step(3)
    bench.step(10)
    assert bench.states() == [SlotState.DONE, SlotState.DONE, SlotState.WAITING]
    bench.actors[3].tell(ActorState.OPEN, device=other)
    bench.step()
    assert bench.actors[3].asked == ["begin run"]


@pytest.mark.parametrize("device", [None, DEVICE])
def test_an_outage_is_waited_for_and_forgotten(device: Device | None) -> None:
    """Whether the actor had opened its device by then or not."""
    bench = Bench()
    for _ in range(5):
        first = [a for a in bench.actors if a.spec.slot.name == "h1:aaaaaa/gpu0"][-1]
        first.tell(ActorState.FAILED, kind=FailureKind.STORE, detail="no server", device=device)
        bench.step(1.0)
        bench.step(30.0)
    assert bench.states()[0] is SlotState.WAITING
    told = [text for text in bench.said if text.startswith("h1:aaaaaa/gpu0")]
    assert told == ["h1:aaaaaa/gpu0: this slot is tried again: no server"]
    for _ in range(40):
        first = [a for a in bench.actors if a.spec.slot.name == "h1:aaaaaa/gpu0"][-1]
        first.tell(ActorState.FAILED, kind=FailureKind.STORE, detail="no server", device=device)
        bench.step(31.0)
    assert bench.states()[0] is SlotState.DRAINED, "not for ever"


def test_an_hour_later_a_taken_gpu_is_waited_for_again() -> None:
    bench = Bench()
    bench.actors[0].tell(ActorState.FAILED, kind=FailureKind.TAKEN, detail="taken", device=None)
    bench.step()
    bench.step(3.0)
    bench.actors[-1].tell(ActorState.OPEN)
    bench.step()
    bench.actors[-1].next = ActorGone(why="killed")
    bench.step(3600)
    bench.step(3)
    bench.actors[-1].tell(ActorState.FAILED, kind=FailureKind.TAKEN, detail="taken", device=None)
    bench.step()
    assert bench.states()[0] is SlotState.WAITING


def test_a_stopped_run_starts_nobody_again() -> None:
    bench = Bench()
    bench.all_open()
    bench.pool.stop(drop=False)
    bench.actors[0].tell(ActorState.FAILED, kind=FailureKind.TAKEN, detail="taken", device=None)
    for actor in bench.actors[1:]:
        actor.tell(ActorState.ENDED, reason=EndReason.INTERRUPTED)
    for _ in range(5):
        bench.step(5)
    assert bench.pool.is_over
    assert len(bench.actors) == 3


def test_who_never_answered_holds_no_run_up() -> None:
    bench = Bench()
    for actor in bench.actors[:2]:
        actor.tell(ActorState.OPEN)
    bench.step()
    bench.pool.begin(CORPUS, "run", [DEVICE.device_class])
    for actor in bench.actors[:2]:
        actor.tell(ActorState.ENDED, reason=EndReason.COMPLETE)
    bench.step()
    assert not bench.pool.is_over, "it may still come, and be of another class"
    bench.step(120)
    assert bench.pool.is_over
    assert "another job may have its GPU" in bench.said[-1]
    assert bench.actors[2].asked == ["kill"]


def test_a_slot_that_ray_does_not_start_is_told_once_while_others_work() -> None:
    bench = Bench()
    bench.open_first_two()
    for _ in range(100):
        for actor in bench.actors[:2]:
            actor.tell(ActorState.COLLECTING)
        bench.step(10)
    assert bench.states() == [SlotState.RUNNING, SlotState.RUNNING, SlotState.WAITING]
    (told,) = bench.said
    assert told.startswith("h2:bbbbbb/gpu0: waiting for 121 s: Ray has not started its actor")
    document = slots_document(bench.pool)
    assert document["seats"] == {"running": 2, "waiting": 1}
    assert document["not_collecting"] == [
        {
            "seat": "h2:bbbbbb/gpu0",
            "state": "waiting",
            "why": "Ray has not started its actor: another job may have its GPU",
        }
    ]
    bench.actors[2].tell(ActorState.OPEN)
    bench.step()
    assert bench.actors[2].asked == ["begin run"], "its GPU came free"
    assert slots_document(bench.pool)["not_collecting"] == []


@pytest.mark.parametrize("is_node_lost", [False, True])
def test_a_slot_that_ray_does_not_start_is_given_up_when_nobody_else_can_go_on(
    is_node_lost: bool,
) -> None:
    bench = Bench()
    bench.open_first_two()
    if is_node_lost:
        bench.cluster.there = NODES[1:]
    else:
        for actor in bench.actors[:2]:
            actor.tell(ActorState.ENDED, reason=EndReason.INTERRUPTED, drained="throttled")
    bench.step()
    bench.step(100)
    assert not bench.pool.is_over, "its GPU may come free in its time"
    bench.step(20)
    assert bench.pool.is_over
    lost = SlotState.GONE if is_node_lost else SlotState.DRAINED
    assert bench.states() == [lost, lost, SlotState.DRAINED]
    assert bench.actors[2].asked == ["kill"]
    assert bench.said[-1] == (
        "h2:bbbbbb/gpu0: drained: Ray has not started its actor: another job may have its GPU (waited 122 s)"
    )


def test_who_is_started_again_has_its_time_though_another_has_waited_for_long() -> None:
    bench = Bench()
    bench.open_first_two()
    bench.actors[1].tell(ActorState.ENDED, reason=EndReason.INTERRUPTED, drained="throttled")
    bench.step()
    bench.actors[0].tell(ActorState.COLLECTING)
    bench.step(500)
    bench.actors[0].next = ActorGone(why="killed")
    bench.step(1)
    bench.step(3)
    bench.step(10)
    assert bench.states() == [SlotState.WAITING, SlotState.DRAINED, SlotState.WAITING]
    bench.actors[3].tell(ActorState.OPEN)
    bench.step()
    assert bench.actors[3].asked == ["begin run"]
    assert not bench.pool.is_over


def test_a_stop_does_not_wait_for_who_never_answered() -> None:
    """A creation that is pending at Ray is cancelled at once."""
    bench = Bench()
    bench.pool.stop(drop=False)
    assert bench.pool.is_over
    assert [actor.asked for actor in bench.actors] == [["kill"]] * 3


@pytest.mark.parametrize("kind", [FailureKind.STORE, FailureKind.TAKEN])
def test_a_stop_ends_slots_that_wait_to_be_tried_again(kind: FailureKind) -> None:
    bench = Bench()
    bench.all_open()
    for actor in bench.actors:
        actor.tell(ActorState.FAILED, kind=kind, detail="not now", statuses={"ok": 2})
    bench.step()
    assert bench.states() == [SlotState.WAITING] * 3
    bench.pool.stop(drop=False)
    assert bench.pool.is_over
    assert [actor.asked for actor in bench.actors] == [["begin run", "kill"]] * 3
    bench.step(1000)
    assert len(bench.actors) == 3, "no actor is started after a stop"
    assert bench.pool.statuses == {"ok": 6}, "what they had done still counts"


def test_a_stop_ends_a_dead_actors_slot_and_one_that_is_started_again() -> None:
    bench = Bench()
    bench.all_open()
    bench.actors[0].next = ActorGone(why="killed")
    bench.step()
    bench.step(3)
    assert len(bench.actors) == 4, "its creation is pending"
    bench.actors[1].next = ActorGone(why="killed")
    bench.step(1)
    assert bench.states() == [SlotState.WAITING, SlotState.WAITING, SlotState.RUNNING]
    bench.pool.stop(drop=False)
    assert bench.states() == [SlotState.DONE, SlotState.DONE, SlotState.RUNNING]
    assert bench.actors[3].asked == ["kill"]
    bench.actors[2].tell(ActorState.ENDED, reason=EndReason.INTERRUPTED)
    bench.step(1000)
    assert bench.pool.is_over
    assert len(bench.actors) == 4


def test_a_node_that_comes_after_a_stop_gets_no_actor() -> None:
    bench = Bench()
    bench.all_open()
    bench.pool.stop(drop=False)
    late = ClusterNode(node_id="cccccccc", host="h3", labels={}, num_gpus=1)
    bench.cluster.there = (*NODES, late)
    bench.step(10)
    assert len(bench.actors) == 3
    for actor in bench.actors:
        actor.tell(ActorState.ENDED, reason=EndReason.INTERRUPTED)
    bench.step(10)
    assert bench.pool.is_over


def test_a_pool_stopped_before_its_first_look_starts_nobody() -> None:
    bench = Bench(starts=False)
    bench.pool.stop(drop=False)
    bench.step(10)
    assert bench.pool.is_over
    assert bench.actors == []


def test_an_actor_that_falls_silent_is_ended_and_started_again() -> None:
    bench = Bench()
    bench.all_open()
    for _ in range(13):
        for actor in bench.actors[1:3]:
            actor.tell(ActorState.COLLECTING)
        bench.step(10)
    assert "its actor has sent no report for" in bench.said[0]
    bench.step(5)
    assert len(bench.actors) == 4


def test_actors_that_do_not_stop_are_ended() -> None:
    bench = Bench()
    bench.all_open()
    bench.pool.stop(drop=True)
    bench.step()
    bench.step(31)
    assert bench.pool.is_over


def test_nothing_is_settled_while_labels_or_classes_are_missing() -> None:
    pools = (NodePool(labels={"pool": "A"}), NodePool(labels={"pool": "Z"}))
    bench = Bench(ClusterConfig(pools=pools, scan_interval_s=1.0))
    bench.all_open()
    assert not bench.pool.is_settled
    late = ClusterNode(node_id="zzzzzzzz", host="h9", labels={"pool": "Z"}, num_gpus=1)
    bench.cluster.there = (*NODES, late)
    bench.step()
    bench.actors[-1].tell(ActorState.OPEN)
    bench.step()
    assert bench.pool.is_settled
    asked = Bench(ClusterConfig(device_classes=(DEVICE.device_class, "a100"), scan_interval_s=1.0))
    asked.all_open()
    assert not asked.pool.is_settled


def test_a_taken_gpu_is_waited_for_a_minute() -> None:
    bench = Bench()
    for _ in range(40):
        last = [a for a in bench.actors if a.spec.slot.name == "h1:aaaaaa/gpu0"][-1]
        last.tell(ActorState.FAILED, kind=FailureKind.TAKEN, detail="pid 7 has it", device=None)
        bench.step(2.0)
    assert bench.states()[0] is SlotState.DRAINED
    assert bench.said == ["h1:aaaaaa/gpu0: drained: pid 7 has it"]
    assert 5 <= len(bench.actors) - 2 <= 20


def test_why_a_slot_was_tried_again_is_still_told_while_ray_starts_its_next_actor() -> None:
    bench = Bench()
    slot = bench.actors[0].spec.slot
    bench.actors[0].tell(ActorState.FAILED, kind=FailureKind.TAKEN, detail="pid 7 has it", device=None)  # fmt: skip
    bench.step()
    bench.step(4.0)
    record = bench.pool.slots[slot]
    assert record.actor is bench.actors[-1]
    assert record.is_unheard
    assert record.why.startswith("pid 7 has it; since then Ray has not started its actor")


def test_an_actor_that_asked_to_be_drained() -> None:
    bench = Bench()
    bench.all_open()
    bench.actors[1].tell(
        ActorState.ENDED, reason=EndReason.INTERRUPTED, drained="throttled in 80% of its samples"
    )
    bench.step()
    assert bench.states()[1] is SlotState.DRAINED
    assert bench.said == ["h1:aaaaaa/gpu1: drained: throttled in 80% of its samples"]
    assert not bench.pool.is_over


def drift(bench: Bench, actor: FakeActor, *, is_steady: bool = False) -> None:
    """Let an actor end because its sentinel has drifted, and the pool hear of it."""
    actor.tell(
        ActorState.ENDED,
        reason=EndReason.INTERRUPTED,
        drained="its sentinel kernel takes 40% longer than at first",
        drain_cause=DrainCause.DRIFT,
        sentinel_baseline_ns=5_000.0,
        is_steady=is_steady,
        statuses={"ok": 3},
    )
    bench.step()


def test_the_last_slot_of_its_class_pauses_for_drift_and_is_tried_again() -> None:
    bench = Bench()
    bench.all_open()
    for actor in bench.actors[:3]:
        drift(bench, actor)
    assert bench.states() == [SlotState.DRAINED, SlotState.DRAINED, SlotState.PAUSED]
    assert bench.said[-1] == (
        "h2:bbbbbb/gpu0: paused: its sentinel kernel takes 40% longer than at first; "
        "no other slot of its device class collects, so it is retried in 10 s"
    )
    assert not bench.pool.is_over
    told = slots_document(bench.pool)
    assert told["seats"] == {"drained": 2, "paused": 1}
    assert told["not_collecting"][2]["state"] == "paused"
    assert "retried in 10 s" in told["not_collecting"][2]["why"]
    assert any("paused" in line and "retried in 10 s" in line for line in lines_of(bench.pool))
    bench.step(8)
    assert len(bench.actors) == 3, "not before the pause is over"
    bench.step(2)
    again = bench.actors[3]
    assert again.spec.sentinel_baseline_ns == 5_000.0
    again.tell(ActorState.OPEN)
    bench.step()
    assert again.asked == ["begin run"]
    again.tell(ActorState.ENDED, reason=EndReason.COMPLETE, statuses={"ok": 4})
    bench.step()
    assert bench.pool.is_over
    assert bench.states()[2] is SlotState.DONE
    assert bench.pool.statuses == {"ok": 13}


def test_pauses_get_longer_and_end_after_the_patience() -> None:
    config = ClusterConfig(scan_interval_s=1.0, drift_pause_s=10.0, drift_patience_s=200.0)
    bench = Bench(config)
    bench.cluster.there = NODES[1:]
    bench.step()
    bench.pool.begin(CORPUS, "run", [DEVICE.device_class])
    pauses = []
    while not bench.pool.is_over:
        last = bench.actors[-1]
        last.tell(ActorState.OPEN)
        bench.step()
        drift(bench, last)
        began_s, num_actors = bench.now_s, len(bench.actors)
        while not bench.pool.is_over and len(bench.actors) == num_actors:
            bench.step()
        pauses.append(round(bench.now_s - began_s))
    assert pauses == [10, 20, 40, 60, 60, 0]
    assert bench.states()[2] is SlotState.DRAINED
    assert bench.said[-1] == (
        "h2:bbbbbb/gpu0: drained: its sentinel kernel takes 40% longer than at first, "
        "and still does after 200 s (cluster.drift_patience_s)"
    )


def test_a_device_that_was_as_fast_again_has_all_its_patience_back() -> None:
    config = ClusterConfig(scan_interval_s=1.0, drift_pause_s=10.0, drift_patience_s=15.0)
    bench = Bench(config)
    bench.cluster.there = NODES[1:]
    bench.step()
    bench.pool.begin(CORPUS, "run", [DEVICE.device_class])
    for _ in range(5):
        last = bench.actors[-1]
        last.tell(ActorState.OPEN)
        bench.step()
        drift(bench, last, is_steady=True)
        assert bench.states()[2] is SlotState.PAUSED
        assert "retried in 10 s" in bench.said[-1]
        bench.step(10)


def test_a_stop_ends_a_pause_at_once() -> None:
    bench = Bench()
    bench.all_open()
    for actor in bench.actors[:3]:
        drift(bench, actor)
    bench.pool.stop(drop=False)
    assert bench.pool.is_over
    assert bench.states()[2] is SlotState.DONE
    bench.step(100)
    assert len(bench.actors) == 3


@pytest.mark.parametrize("cause", [DrainCause.FAULTS, DrainCause.THROTTLING])
def test_the_last_slot_is_given_up_for_what_does_not_pass(cause: DrainCause) -> None:
    bench = Bench()
    bench.all_open()
    for actor in bench.actors:
        actor.tell(ActorState.ENDED, reason=EndReason.INTERRUPTED, drained="why", drain_cause=cause)
    bench.step()
    assert bench.states() == [SlotState.DRAINED] * 3


def test_a_class_of_its_own_has_a_last_slot_of_its_own() -> None:
    bench = Bench()
    other = make_device(1, "a100")
    bench.actors[2].tell(ActorState.OPEN, device=other)
    for actor in bench.actors[:2]:
        actor.tell(ActorState.OPEN)
    bench.step()
    bench.pool.begin(CORPUS, "run", [DEVICE.device_class, "a100"])
    drift(bench, bench.actors[0])
    assert bench.states()[0] is SlotState.DRAINED, "another slot of its class goes on"
    bench.actors[2].tell(
        ActorState.ENDED, device=other, drained="slow", drain_cause=DrainCause.DRIFT
    )
    bench.step()
    assert bench.states() == [SlotState.DRAINED, SlotState.RUNNING, SlotState.PAUSED]


@pytest.mark.parametrize("other", ["waits for Ray", "opens its device", "drains", "is paused"])
def test_a_slot_that_does_not_collect_is_no_other_of_its_class(other: str) -> None:
    bench = Bench()
    bench.cluster.there = NODES[:1]
    bench.all_open()
    if other == "drains":
        bench.actors[1].tell(ActorState.COLLECTING, drained="too hot")
    else:
        bench.actors[1].next = ActorGone(why="killed")
    bench.step()
    bench.step(2)
    if other == "opens its device":
        bench.actors[-1].tell(ActorState.STARTING, device=None)
    drift(bench, bench.actors[0])
    assert bench.states()[0] is SlotState.PAUSED
    assert "no other slot of its device class collects" in bench.said[-1]
    if other == "is paused":
        bench.actors[-1].tell(ActorState.OPEN)
        bench.step()
        drift(bench, bench.actors[-1])
        assert bench.states()[:2] == [SlotState.PAUSED, SlotState.PAUSED]


def test_a_run_ends_whole_though_the_only_other_slot_waits_for_ray_for_ever() -> None:
    """Before, the working slot was drained, the other given up, and tasks were left (exit code 4)."""
    bench = Bench()
    bench.all_open()
    bench.actors[2].tell(ActorState.ENDED, reason=EndReason.INTERRUPTED, drained="too hot")
    bench.actors[1].next = ActorGone(why="killed")
    bench.step()
    bench.step(2)
    drift(bench, bench.actors[0])
    bench.step(200)
    assert bench.states() == [SlotState.WAITING, SlotState.WAITING, SlotState.DRAINED]
    again = bench.actors[-1]
    again.tell(ActorState.OPEN)
    bench.step()
    again.tell(ActorState.ENDED, reason=EndReason.COMPLETE, statuses={"ok": 4})
    bench.step()
    assert bench.pool.is_over
    assert bench.states() == [SlotState.DONE, SlotState.DONE, SlotState.DRAINED]


def test_nodes_come_and_go() -> None:
    bench = Bench()
    bench.all_open()
    late = ClusterNode(node_id="cccccccc", host="h3", labels={}, num_gpus=1)
    bench.cluster.there = (NODES[0], late)
    bench.step()
    assert bench.states() == [
        SlotState.RUNNING,
        SlotState.RUNNING,
        SlotState.GONE,
        SlotState.WAITING,
    ]
    bench.actors[-1].tell(ActorState.OPEN)
    bench.step()
    assert bench.states()[-1] is SlotState.RUNNING
    assert bench.actors[-1].asked == ["begin run"], "a late node joins the run"
    assert "h2:bbbbbb/gpu0: gone: its node is gone" in bench.said


def test_a_class_that_the_plan_has_not() -> None:
    bench = Bench()
    bench.actors[0].tell(ActorState.OPEN)
    bench.step()
    bench.pool.begin(CORPUS, "run", ["another"])
    assert bench.states()[0] is SlotState.DRAINED
    assert "the run's plan has no tasks for its device class" in bench.said[-1]


def test_a_stop_reaches_all_and_starts_nobody() -> None:
    bench = Bench()
    bench.all_open()
    bench.actors[0].next = ActorGone(why="killed")
    bench.step()
    bench.pool.stop(drop=False)
    assert [a.asked[-1] for a in bench.actors[1:]] == ["stop drop=False"] * 2
    for actor in bench.actors[1:]:
        actor.tell(ActorState.ENDED, reason=EndReason.INTERRUPTED)
    bench.step(10)
    assert bench.pool.is_over
    assert len(bench.actors) == 3


def test_labels_that_no_node_has_are_told_once() -> None:
    bench = Bench(ClusterConfig(pools=(NodePool(labels={"pool": "Z"}),), scan_interval_s=1.0))
    bench.step(5)
    assert len(bench.said) == 1
    assert "no node has the labels pool=Z (existing labels: pool=A, pool=B)" in bench.said[0]
    assert bench.pool.missing_labels == (bench.said[0],)


def test_nodes_without_gpus_sit_only_where_no_node_has_any() -> None:
    head = ClusterNode(node_id="hhhhhhhh", host="h0")
    pools = (NodePool(),)
    assert "h0:hhhhhh/cpu0" not in {s.name for s in slots_of((*NODES, head), pools, device="auto")}
    assert [s.name for s in slots_of((head,), pools, device="auto")] == ["h0:hhhhhh/cpu0"]


def test_a_node_belongs_to_the_first_pool_whose_labels_it_has() -> None:
    pools = (NodePool(labels={"pool": "A"}, device="cpu"), NodePool(labels={}))
    found = {s.name: s.device for s in slots_of(NODES, pools, device="auto")}
    assert found == {"h1:aaaaaa/gpu0": "cpu", "h1:aaaaaa/gpu1": "cpu", "h2:bbbbbb/gpu0": "auto"}


@pytest.mark.parametrize(
    ("labels", "wanted", "is_in"),
    [
        ({"pool": "A"}, {"pool": "A"}, True),
        ({"pool": "A"}, {"pool": "!A"}, False),
        ({}, {"pool": "!A"}, True),
        ({"pool": "B"}, {"pool": "in(A, B)"}, True),
        ({"pool": "C"}, {"pool": "!in(A,B)"}, True),
        ({"pool": "A"}, {"pool": "A", "zone": "x"}, False),
        ({"pool": "A"}, {}, True),
    ],
)
def test_selectors(labels: dict[str, str], wanted: dict[str, str], is_in: bool) -> None:
    assert matches(labels, wanted) is is_in


def test_pools_with_nodes_are_not_missing() -> None:
    assert unmatched_pools(NODES, (NodePool(), NodePool(labels={"pool": "B"}))) == ()


def test_a_slot_is_named_by_host_node_and_index() -> None:
    slot = ActorSlot(
        node_id="0123456789", host="h", index=3, num_on_node=4, on_gpu=True, device="auto"
    )
    assert slot.name == "h:012345/gpu3"


def test_the_device_is_known_after_its_actor_died() -> None:
    bench = Bench()
    bench.all_open()
    bench.actors[0].next = ActorGone(why="killed")
    bench.step()
    found: dict[ActorSlot, Device] = bench.pool.devices
    assert len(found) == 3
