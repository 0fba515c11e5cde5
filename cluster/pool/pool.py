"""The pool: keeps an actor on every slot until the end of the run, and replaces dead actors.

Decides which slots get an actor, a restart, a drain or a later retry. Actors share the work through
the ledger. No data passes through the pool, which only gets the actors' reports. The pool does not
need Ray (``runtime.py``) and never waits: its owner calls ``step``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.config import ClusterConfig
from cluster.pool.reports import ActorReport, ActorSpec, ActorState, DrainCause, FailureKind
from cluster.pool.runtime import ActorGone, Runtime
from cluster.pool.slot_records import SlotRecord, SlotState, is_same_class
from cluster.pool.slots import ActorSlot, slots_of, unmatched_pools
from llmperf_common.records import Device
from workers.collect.loop_interfaces import EndReason
from workers.corpus.read import Corpus

_TAKEN_PATIENCE_S = 60.0
"""Seconds for which an actor is started again while another process has its GPU. That process may
be an actor of a killed driver, which ends within this time."""
_SILENCE_LIMIT_S = 120.0
"""Seconds without a report after which a running actor is killed, because its process hangs."""
_STOP_PATIENCE_S = 30.0
"""Seconds within which actors must end after they were told to drop their tasks."""
_LONGEST_PAUSE_S = 30.0


class ActorPool:
    """Keeps an actor on every slot.

    Args:
        runtime: the cluster.
        config: config of the cluster.
        spec_of: returns the spec for the actor of a slot.
        device: the selector for pools that name no device.
        say: receives messages for the operator.
        store_patience_s: seconds for which actors of a slot may fail to reach dataset or ledger
            before the slot is drained.
        refused: returns why a slot cannot be used, None if it can.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClusterConfig,
        *,
        spec_of: Callable[[ActorSlot], ActorSpec],
        device: str,
        say: Callable[[str], None],
        store_patience_s: float = 600.0,
        refused: Callable[[ActorSlot], str | None] = lambda _slot: None,
    ) -> None:
        self._runtime = runtime
        self._patience_s = {
            FailureKind.TAKEN: _TAKEN_PATIENCE_S,
            FailureKind.STORE: store_patience_s,
        }
        self._refused = refused
        self._stopped_s: float | None = None
        self._is_dropping = False
        self._config = config
        self._spec_of = spec_of
        self._device = device
        self._say = say
        self._scan_at_s = 0.0
        self._run: tuple[Corpus, str, frozenset[str]] | None = None
        self._is_stopping = False
        self.slots: dict[ActorSlot, SlotRecord] = {}
        self.missing_labels: tuple[str, ...] = ()
        """A message for each pool of the config that no node belongs to."""

    def step(self, now_s: float) -> None:
        """Read the state of nodes and actors; start, stop and report as needed."""
        if now_s >= self._scan_at_s:
            self._scan_at_s = now_s + self._config.scan_interval_s
            self._scan()
        for record in self.slots.values():
            if record.is_active and record.actor is not None:
                self._hear(record, now_s)
            waits = record.state in (SlotState.WAITING, SlotState.PAUSED) and record.actor is None
            if waits and now_s >= record.start_at_s and not self._is_stopping:
                self._start(record, now_s)
        self._end_the_silent(now_s)
        self._judge_the_unheard(now_s)

    def begin(self, corpus: Corpus, run_id: str, device_classes: Sequence[str]) -> None:
        """Let all actors that are open now or open later collect a run of these device classes."""
        self._run = (corpus, run_id, frozenset(device_classes))
        for record in self.slots.values():
            self._begin_if_open(record)

    def stop(self, *, drop: bool) -> None:
        """Ask all actors to end, and start no more; with ``drop`` they leave their tasks unfinished.

        A slot that waits for an actor or is paused has no tasks, so it ends at once.
        """
        self._is_stopping, self._is_dropping = True, self._is_dropping or drop
        self._stopped_s = None  # _end_the_silent sets it in the next step
        for record in self.slots.values():
            if record.state in (SlotState.WAITING, SlotState.PAUSED):
                self._end(record, SlotState.DONE, "the run was stopped")
            elif record.state is SlotState.RUNNING:
                assert record.actor is not None, "it runs"
                record.actor.stop(drop=drop)

    def close(self) -> None:
        """End all actors."""
        for record in self.slots.values():
            if record.actor is not None:
                record.actor.kill()
                record.actor = None

    @property
    def devices(self) -> dict[ActorSlot, Device]:
        """The device that each slot's actor has opened, also for slots that have ended since."""
        return {
            record.slot: record.device
            for record in self.slots.values()
            if record.device is not None
        }

    @property
    def is_settled(self) -> bool:
        """Whether devices of all wanted classes are open, and no other slot's device is awaited."""
        wanted = set(self._config.device_classes or ())
        return (
            bool(self.slots)
            and not self.missing_labels
            and wanted <= {device.device_class for device in self.devices.values()}
            and all(
                not record.is_active or record.device is not None for record in self.slots.values()
            )
        )

    @property
    def is_over(self) -> bool:
        """Whether no actor runs and none will be started."""
        return not any(record.is_active for record in self.slots.values())

    @property
    def statuses(self) -> Counter[str]:
        """Number of rows by status that all actors of this driver have committed."""
        total: Counter[str] = Counter()
        for record in self.slots.values():
            total += record.statuses
        return total

    def _scan(self) -> None:
        nodes = self._runtime.nodes()
        alive = {node.node_id for node in nodes}
        for record in self.slots.values():
            if record.slot.node_id not in alive and record.is_active:
                self._note_state(record, SlotState.GONE, "its node is gone")
        missing = tuple(text for _, text in unmatched_pools(nodes, self._config.pools))
        for text in missing:
            if text not in self.missing_labels:
                self._say(text)
        self.missing_labels = missing
        if self._is_stopping:
            return
        for slot in slots_of(nodes, self._config.pools, device=self._device):
            if slot in self.slots:
                continue
            record = self.slots[slot] = SlotRecord(slot=slot)
            why = self._refused(slot)
            if why is not None:
                self._note_state(record, SlotState.DRAINED, why)

    def _start(self, record: SlotRecord, now_s: float) -> None:
        self._keep_counts(record)
        spec = self._spec_of(record.slot)
        if record.drift.since_s is not None:
            spec = replace(spec, sentinel_baseline_ns=record.drift.baseline_ns)
        record.actor = self._runtime.start(spec)
        record.state = SlotState.WAITING
        record.has_begun, record.is_overdue, record.start_at_s = False, False, now_s
        waits = "Ray has not started its actor"
        if record.slot.on_gpu:
            waits += ": another job may have its GPU"
        record.why = f"{record.why}; since then {waits}" if record.why else waits

    def _end_the_silent(self, now_s: float) -> None:
        """Kill actors that do not report or do not stop, so that no run waits for them for ever."""
        if self._is_stopping and self._stopped_s is None:
            self._stopped_s = now_s
        for record in self.slots.values():
            if record.state is not SlotState.RUNNING:
                continue
            silent_s = now_s - record.heard_s
            if self._is_dropping and now_s - (self._stopped_s or now_s) > _STOP_PATIENCE_S:
                self._end(record, SlotState.DONE, "its actor did not stop in time")
            elif silent_s > _SILENCE_LIMIT_S:
                self._died(record, f"its actor has sent no report for {silent_s:.0f} s", now_s)

    def _judge_the_unheard(self, now_s: float) -> None:
        """Report slots whose actor Ray has not started for long; give them up if no slot collects.

        While another slot collects, waiting costs nothing: another job may hold a GPU for hours,
        and the slot joins as soon as the GPU is free.
        """
        done_classes = {
            record.device.device_class
            for record in self.slots.values()
            if record.state is SlotState.DONE and record.device is not None
        }
        # A restarted actor gets time to answer, too, because it may be the only one of its class.
        unheard = [record for record in self.slots.values() if record.is_unheard]
        needless = {p.slot for p in unheard if p.device and p.device.device_class in done_classes}
        late = {p.slot for p in unheard if now_s - p.start_at_s > self._config.start_timeout_s}
        has_no_other = all(record.is_unheard for record in self.slots.values() if record.is_active)
        is_hopeless = has_no_other and all(record.slot in needless | late for record in unheard)
        for record in unheard:
            waited_s = now_s - record.start_at_s
            if is_hopeless:
                state = SlotState.DONE if record.slot in needless else SlotState.DRAINED
                self._end(record, state, f"{record.why} (waited {waited_s:.0f} s)")
            elif record.slot in late and not record.is_overdue:
                record.is_overdue = True
                self._say(
                    f"{record.slot.name}: waiting for {waited_s:.0f} s: {record.why}; `ray list "
                    "actors` shows which actors hold resources; the slot joins as soon as Ray "
                    "starts its actor"
                )

    def _end(self, record: SlotRecord, state: SlotState, why: str) -> None:
        if record.actor is not None:
            record.actor.kill()
        self._note_state(record, state, why)

    @staticmethod
    def _keep_counts(record: SlotRecord) -> None:
        """Add the last actor's counts to those of the slot, and drop the actor's report."""
        record.earlier, record.num_tasks_earlier = record.statuses, record.num_tasks_done
        record.report = None

    def _hear(self, record: SlotRecord, now_s: float) -> None:
        assert record.actor is not None, "it runs"
        told = record.actor.poll()
        if told is None:
            return
        if isinstance(told, ActorGone):
            self._died(record, told.why, now_s)
            return
        if told.num_tasks_done:
            record.deaths_in_a_row, record.failing, record.pause_s = 0, None, 0.0
        if told.sentinel_baseline_ns is not None:
            record.drift.baseline_ns = told.sentinel_baseline_ns
        if told.is_steady:
            record.drift.note_steady()
        if told.device is not None:
            record.device = told.device
            if record.failing is FailureKind.TAKEN:
                record.failing, record.pause_s = None, 0.0
        record.state, record.why = SlotState.RUNNING, ""
        record.report, record.heard_s = told, now_s
        self._begin_if_open(record)
        if told.state is ActorState.ENDED:
            record.actor.kill()
            if told.drained:
                self._drained(record, told, now_s)
            else:
                record.state = SlotState.DONE
        elif told.state is ActorState.FAILED:
            self._failed(record, told, now_s)

    def _drained(self, record: SlotRecord, told: ActorReport, now_s: float) -> None:
        """Give the slot up, or pause it if the cause may pass and no other slot of its class works.

        Slots that pause or wait for Ray do not count as other slots, because they may never collect
        again.
        """
        is_last = not any(
            one is not record and one.is_collecting and is_same_class(one, record)
            for one in self.slots.values()
        )
        may_pass = told.drain_cause is DrainCause.DRIFT and told.reason is not EndReason.COMPLETE
        if self._is_stopping or not (is_last and may_pass):
            self._note_state(record, SlotState.DRAINED, told.drained)
            return
        config = self._config
        pause_s = record.drift.next_pause_s(
            now_s, first_s=config.drift_pause_s, limit_s=config.drift_patience_s
        )
        if pause_s is None:
            why = (
                f"{told.drained}, and still does after {config.drift_patience_s:g} s "
                "(cluster.drift_patience_s)"
            )
            self._note_state(record, SlotState.DRAINED, why)
            return
        record.actor, record.start_at_s = None, now_s + pause_s
        why = (
            f"{told.drained}; no other slot of its device class collects, so it is retried in "
            f"{pause_s:g} s"
        )
        self._note_state(record, SlotState.PAUSED, why)

    def _failed(self, record: SlotRecord, told: ActorReport, now_s: float) -> None:
        assert record.actor is not None, "it has told"
        if told.kind is FailureKind.INTERNAL:
            self._died(record, told.detail, now_s)
            return
        record.actor.kill()
        patience_s = self._patience_s.get(told.kind, 0.0) if told.kind else 0.0
        if self._is_stopping and patience_s:
            self._note_state(record, SlotState.DONE, told.detail)
            return
        if record.failing is not told.kind:
            record.failing, record.failing_since_s, record.pause_s = told.kind, now_s, 0.0
        if now_s - record.failing_since_s < patience_s:
            if record.pause_s == 0.0 and told.kind is FailureKind.STORE:
                self._say(f"{record.slot.name}: this slot is tried again: {told.detail}")
            record.pause_s = min(_LONGEST_PAUSE_S, 1.5 * record.pause_s or 2.0)
            record.state, record.why, record.actor = SlotState.WAITING, told.detail, None
            record.start_at_s = now_s + record.pause_s
            return
        self._note_state(record, SlotState.DRAINED, told.detail)

    def _died(self, record: SlotRecord, why: str, now_s: float) -> None:
        assert record.actor is not None, "it has died"
        record.actor.kill()
        record.actor = None
        self._keep_counts(record)
        record.deaths_in_a_row += 1
        if self._is_stopping:
            record.state, record.why = SlotState.DONE, why
        elif record.deaths_in_a_row > self._config.max_restarts:
            detail = f"its actor died {record.deaths_in_a_row} times in a row: {why}"
            self._note_state(record, SlotState.DRAINED, detail)
        else:
            self._say(f"{record.slot.name}: its actor died and is started again: {why}")
            record.state, record.why = SlotState.WAITING, why
            record.start_at_s = now_s + self._config.restart_delay_s

    def _begin_if_open(self, record: SlotRecord) -> None:
        told = record.report
        if self._run is None or record.has_begun or told is None or record.actor is None:
            return
        if self._is_stopping:
            self._end(record, SlotState.DONE, "the run was stopped")
            return
        if told.state is not ActorState.OPEN:
            return
        corpus, run_id, classes = self._run
        assert told.device is not None, "it is open"
        record.has_begun = True
        if told.device.device_class in classes:
            record.actor.begin(corpus, run_id)
        else:
            record.actor.kill()
            why = f"the run's plan has no tasks for its device class {told.device.device_class}"
            self._note_state(record, SlotState.DRAINED, why)

    def _note_state(self, record: SlotRecord, state: SlotState, why: str) -> None:
        record.state, record.why = state, why
        self._say(f"{record.slot.name}: {state.value}: {why}")
