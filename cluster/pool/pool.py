"""The pool: an actor on every seat, from its start to the end of the run, whatever dies meanwhile.

Owns who is started, started again, drained or let in later. Not on the data path: actors share the work by the ledger, and the
pool knows of it only what they tell. Ray-free (``runtime.py``), and without waits: its owner calls ``step``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.config import ClusterConfig
from cluster.pool.drift_pause import DriftPause
from cluster.pool.reports import ActorReport, ActorSpec, ActorState, DrainCause, FailureKind
from cluster.pool.runtime import Actor, ActorGone, Runtime
from cluster.pool.seats import Seat, seats_of, unmatched_pools
from llmperf_common.records import Device
from workers.collect.loop_interfaces import StopReason
from workers.corpus.read import Corpus

_TAKEN_PATIENCE_S = 60.0
"""How long a GPU may be held by somebody else, such as the actors of a driver that was just killed."""
_SILENCE_LIMIT_S = 120.0
"""An actor that was heard and then tells nothing for so long is ended: its process hangs."""
_STOP_PATIENCE_S = 30.0
"""How long actors that dropped their tasks may take to end."""
_LONGEST_PAUSE_S = 30.0


class SeatState(StrEnum):
    """What a seat is to the pool."""

    WAITING = "waiting"
    """To be started at ``Place.start_at_s``, or asked of Ray, and its actor has not answered yet."""
    RUNNING = "running"
    """Its actor has answered."""
    PAUSED = "paused"
    """No other of its device class collects, and it is too slow for now: tried again at ``Place.start_at_s``."""
    DONE = "done"
    DRAINED = "drained"
    """Given up for this run; ``Place.why`` says why."""
    GONE = "gone"
    """Its node is dead."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One seat with its present actor and what its earlier ones have done."""

    seat: Seat
    state: SeatState = SeatState.WAITING
    why: str = ""
    start_at_s: float = 0.0
    actor: Actor | None = None
    report: ActorReport | None = None
    has_begun: bool = False
    heard_s: float = 0.0
    """When the present actor last told something; means nothing before it has."""
    is_overdue: bool = False
    """Whether somebody was told that the present actor has not answered for long."""
    deaths_in_a_row: int = 0
    failing: FailureKind | None = None
    """Why the last actors here ended, each before it had done anything; since when is the next."""
    failing_since_s: float = 0.0
    pause_s: float = 0.0
    drift: DriftPause = field(default_factory=DriftPause)
    device: Device | None = None
    """What the last actor here has opened."""
    earlier: Counter[str] = field(default_factory=Counter)
    """Rows by status of the actors that have ended here."""
    num_tasks_earlier: int = 0

    @property
    def is_active(self) -> bool:
        """Whether an actor runs here, or will be started."""
        return self.state in (SeatState.WAITING, SeatState.RUNNING, SeatState.PAUSED)

    @property
    def is_collecting(self) -> bool:
        """Whether an actor collects here, or does so as soon as the run begins, and has not asked to be drained."""
        told = self.report
        return (
            self.state is SeatState.RUNNING
            and told is not None
            and told.state in (ActorState.OPEN, ActorState.COLLECTING)
            and not told.drained
        )

    @property
    def is_unheard(self) -> bool:
        """Whether its actor was asked of Ray and has not answered: it has nothing in hand."""
        return self.state is SeatState.WAITING and self.actor is not None

    @property
    def num_tasks_done(self) -> int:
        """Tasks committed from this seat."""
        return self.num_tasks_earlier + (self.report.num_tasks_done if self.report else 0)

    @property
    def statuses(self) -> Counter[str]:
        """Rows by status, committed from this seat."""
        return self.earlier + Counter(self.report.statuses if self.report else {})


class ActorPool:
    """Keeps an actor on every seat.

    Args:
        runtime: the cluster.
        config: of the cluster.
        spec_of: makes an actor's spec.
        device: the selector of pools that name none.
        say: is told what an operator should know.
        store_patience_s: how long a dataset or ledger may be out of an actor's reach before its seat is drained.
        refused: why a seat cannot serve, None where it can.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClusterConfig,
        *,
        spec_of: Callable[[Seat], ActorSpec],
        device: str,
        say: Callable[[str], None],
        store_patience_s: float = 600.0,
        refused: Callable[[Seat], str | None] = lambda _seat: None,
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
        self.places: dict[Seat, Place] = {}
        self.missing_labels: tuple[str, ...] = ()
        """What to tell of pools that no node belongs to."""

    def step(self, now_s: float) -> None:
        """Look at nodes and actors, and do what is due."""
        if now_s >= self._scan_at_s:
            self._scan_at_s = now_s + self._config.scan_interval_s
            self._scan()
        for place in self.places.values():
            if place.is_active and place.actor is not None:
                self._hear(place, now_s)
            waits = place.state in (SeatState.WAITING, SeatState.PAUSED) and place.actor is None
            if waits and now_s >= place.start_at_s and not self._is_stopping:
                self._start(place, now_s)
        self._end_the_silent(now_s)
        self._judge_the_unheard(now_s)

    def begin(self, corpus: Corpus, run_id: str, device_classes: Sequence[str]) -> None:
        """Let all open actors, and later ones as they open, collect a run for these device classes."""
        self._run = (corpus, run_id, frozenset(device_classes))
        for place in self.places.values():
            self._begin_if_open(place)

    def stop(self, *, drop: bool) -> None:
        """Ask all actors to end; nobody is started any more. A seat that waits has nothing in hand and is ended at once."""
        self._is_stopping, self._is_dropping = True, self._is_dropping or drop
        self._stopped_s = None  # the clock of patience begins with the next step
        for place in self.places.values():
            if place.state in (SeatState.WAITING, SeatState.PAUSED):
                self._end(place, SeatState.DONE, "the run was stopped")
            elif place.state is SeatState.RUNNING:
                assert place.actor is not None, "it runs"
                place.actor.stop(drop=drop)

    def close(self) -> None:
        """End all actors."""
        for place in self.places.values():
            if place.actor is not None:
                place.actor.kill()
                place.actor = None

    @property
    def devices(self) -> dict[Seat, Device]:
        """The device of each actor that has opened one, whatever became of it since."""
        return {
            place.seat: place.device for place in self.places.values() if place.device is not None
        }

    @property
    def is_settled(self) -> bool:
        """Whether all that was asked for is there, and every seat has its device open or never will."""
        wanted = set(self._config.device_classes or ())
        return (
            bool(self.places)
            and not self.missing_labels
            and wanted <= {device.device_class for device in self.devices.values()}
            and all(
                not place.is_active or place.device is not None for place in self.places.values()
            )
        )

    @property
    def is_over(self) -> bool:
        """Whether no actor runs or will be started."""
        return not any(place.is_active for place in self.places.values())

    @property
    def statuses(self) -> Counter[str]:
        """Rows by status, committed in this session by all actors."""
        total: Counter[str] = Counter()
        for place in self.places.values():
            total += place.statuses
        return total

    def _scan(self) -> None:
        nodes = self._runtime.nodes()
        alive = {node.node_id for node in nodes}
        for place in self.places.values():
            if place.seat.node_id not in alive and place.is_active:
                self._note_state(place, SeatState.GONE, "its node is gone")
        missing = tuple(text for _, text in unmatched_pools(nodes, self._config.pools))
        for text in missing:
            if text not in self.missing_labels:
                self._say(text)
        self.missing_labels = missing
        if self._is_stopping:
            return
        for seat in seats_of(nodes, self._config.pools, device=self._device):
            if seat in self.places:
                continue
            place = self.places[seat] = Place(seat=seat)
            why = self._refused(seat)
            if why is not None:
                self._note_state(place, SeatState.DRAINED, why)

    def _start(self, place: Place, now_s: float) -> None:
        self._keep_counts(place)
        spec = self._spec_of(place.seat)
        if place.drift.since_s is not None:
            spec = replace(spec, sentinel_baseline_ns=place.drift.baseline_ns)
        place.actor = self._runtime.start(spec)
        place.state = SeatState.WAITING
        place.has_begun, place.is_overdue, place.start_at_s = False, False, now_s
        waits = "Ray has not started its actor"
        if place.seat.on_gpu:
            waits += ": another job may have its GPU"
        place.why = f"{place.why}; since then {waits}" if place.why else waits

    def _end_the_silent(self, now_s: float) -> None:
        """No run waits for ever for an actor whose process hangs."""
        if self._is_stopping and self._stopped_s is None:
            self._stopped_s = now_s
        for place in self.places.values():
            if place.state is not SeatState.RUNNING:
                continue
            silent_s = now_s - place.heard_s
            if self._is_dropping and now_s - (self._stopped_s or now_s) > _STOP_PATIENCE_S:
                self._end(place, SeatState.DONE, "it did not stop in time")
            elif silent_s > _SILENCE_LIMIT_S:
                self._died(place, f"it has told nothing for {silent_s:.0f} s", now_s)

    def _judge_the_unheard(self, now_s: float) -> None:
        """Say which seats wait long for Ray, and give them up once nobody else works or will.

        While another seat works they cost nothing: a GPU may be another job's for hours, and its seat joins when it is free.
        """
        done_classes = {
            place.device.device_class
            for place in self.places.values()
            if place.state is SeatState.DONE and place.device is not None
        }
        # An actor that was started again may be the only one of its class: it is given its time to answer.
        unheard = [place for place in self.places.values() if place.is_unheard]
        needless = {p.seat for p in unheard if p.device and p.device.device_class in done_classes}
        late = {p.seat for p in unheard if now_s - p.start_at_s > self._config.start_timeout_s}
        is_nobody_else = all(place.is_unheard for place in self.places.values() if place.is_active)
        is_hopeless = is_nobody_else and all(place.seat in needless | late for place in unheard)
        for place in unheard:
            waited_s = now_s - place.start_at_s
            if is_hopeless:
                state = SeatState.DONE if place.seat in needless else SeatState.DRAINED
                self._end(place, state, f"{place.why} (waited {waited_s:.0f} s)")
            elif place.seat in late and not place.is_overdue:
                place.is_overdue = True
                self._say(
                    f"{place.seat.name}: waiting for {waited_s:.0f} s: {place.why}; `ray list actors` names who runs "
                    "there; the seat joins by itself as soon as Ray starts its actor"
                )

    def _end(self, place: Place, state: SeatState, why: str) -> None:
        if place.actor is not None:
            place.actor.kill()
        self._note_state(place, state, why)

    @staticmethod
    def _keep_counts(place: Place) -> None:
        """Add what the last actor told to what its seat has done; its report is no more."""
        place.earlier, place.num_tasks_earlier = place.statuses, place.num_tasks_done
        place.report = None

    def _hear(self, place: Place, now_s: float) -> None:
        assert place.actor is not None, "it runs"
        told = place.actor.poll()
        if told is None:
            return
        if isinstance(told, ActorGone):
            self._died(place, told.why, now_s)
            return
        if told.num_tasks_done:
            place.deaths_in_a_row, place.failing, place.pause_s = 0, None, 0.0
        if told.sentinel_baseline_ns is not None:
            place.drift.baseline_ns = told.sentinel_baseline_ns
        if told.is_steady:
            place.drift.note_steady()
        if told.device is not None:
            place.device = told.device
            if place.failing is FailureKind.TAKEN:
                place.failing, place.pause_s = None, 0.0
        place.state, place.why = SeatState.RUNNING, ""
        place.report, place.heard_s = told, now_s
        self._begin_if_open(place)
        if told.state is ActorState.ENDED:
            place.actor.kill()
            if told.drained:
                self._drained(place, told, now_s)
            else:
                place.state = SeatState.DONE
        elif told.state is ActorState.FAILED:
            self._failed(place, told, now_s)

    def _drained(self, place: Place, told: ActorReport, now_s: float) -> None:
        """Give the seat up; the last that collects of its device class pauses where the cause may pass.

        A seat that waits, for Ray or for its own pause, may never collect again: it is no other seat to rely on.
        """
        is_last = not any(
            one is not place and one.is_collecting and _same_class(one, place)
            for one in self.places.values()
        )
        may_pass = told.drain_cause is DrainCause.DRIFT and told.reason is not StopReason.COMPLETE
        if self._is_stopping or not (is_last and may_pass):
            self._note_state(place, SeatState.DRAINED, told.drained)
            return
        config = self._config
        pause_s = place.drift.next_pause_s(
            now_s, first_s=config.drift_pause_s, limit_s=config.drift_patience_s
        )
        if pause_s is None:
            why = f"{told.drained}, and still does after {config.drift_patience_s:g} s (cluster.drift_patience_s)"
            self._note_state(place, SeatState.DRAINED, why)
            return
        place.actor, place.start_at_s = None, now_s + pause_s
        why = f"{told.drained}; no other seat of its device class collects, tried again in {pause_s:g} s"
        self._note_state(place, SeatState.PAUSED, why)

    def _failed(self, place: Place, told: ActorReport, now_s: float) -> None:
        assert place.actor is not None, "it has told"
        if told.kind is FailureKind.INTERNAL:
            self._died(place, told.detail, now_s)
            return
        place.actor.kill()
        patience_s = self._patience_s.get(told.kind, 0.0) if told.kind else 0.0
        if self._is_stopping and patience_s:
            self._note_state(place, SeatState.DONE, told.detail)
            return
        if place.failing is not told.kind:
            place.failing, place.failing_since_s, place.pause_s = told.kind, now_s, 0.0
        if now_s - place.failing_since_s < patience_s:
            if place.pause_s == 0.0 and told.kind is FailureKind.STORE:
                self._say(f"{place.seat.name}: tried again: {told.detail}")
            place.pause_s = min(_LONGEST_PAUSE_S, 1.5 * place.pause_s or 2.0)
            place.state, place.why, place.actor = SeatState.WAITING, told.detail, None
            place.start_at_s = now_s + place.pause_s
            return
        self._note_state(place, SeatState.DRAINED, told.detail)

    def _died(self, place: Place, why: str, now_s: float) -> None:
        assert place.actor is not None, "it has died"
        place.actor.kill()
        place.actor = None
        self._keep_counts(place)
        place.deaths_in_a_row += 1
        if self._is_stopping:
            place.state, place.why = SeatState.DONE, why
        elif place.deaths_in_a_row > self._config.max_restarts:
            detail = f"its actor died {place.deaths_in_a_row} times in a row: {why}"
            self._note_state(place, SeatState.DRAINED, detail)
        else:
            self._say(f"{place.seat.name}: its actor died and is started again: {why}")
            place.state, place.why = SeatState.WAITING, why
            place.start_at_s = now_s + self._config.restart_delay_s

    def _begin_if_open(self, place: Place) -> None:
        told = place.report
        if self._run is None or place.has_begun or told is None or place.actor is None:
            return
        if self._is_stopping:
            self._end(place, SeatState.DONE, "the run was stopped")
            return
        if told.state is not ActorState.OPEN:
            return
        corpus, run_id, classes = self._run
        assert told.device is not None, "it is open"
        place.has_begun = True
        if told.device.device_class in classes:
            place.actor.begin(corpus, run_id)
        else:
            place.actor.kill()
            why = f"the plan is not for its device class {told.device.device_class}"
            self._note_state(place, SeatState.DRAINED, why)

    def _note_state(self, place: Place, state: SeatState, why: str) -> None:
        place.state, place.why = state, why
        self._say(f"{place.seat.name}: {state.value}: {why}")


def _same_class(one: Place, other: Place) -> bool:
    if one.device is None or other.device is None:
        return False
    return one.device.device_class == other.device.device_class
