"""The pool: an actor on every seat, from its start to the end of the run, whatever dies meanwhile.

Owns who is started, started again, drained or let in later. Not on the data path: actors share the work by the ledger, and the
pool knows of it only what they tell. Ray-free (``runtime.py``), and without waits: its owner calls ``step``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.config import ClusterConfig
from cluster.reports import ActorReport, ActorSpec, ActorState, FailureKind
from cluster.runtime import Actor, ActorGone, Runtime
from cluster.seats import Seat, seats_of, unmatched_pools
from llmperf_common.records import Device
from workers.corpus import Corpus

_TAKEN_PATIENCE_S = 60.0
"""How long a GPU may be held by somebody else, such as the actors of a driver that was just killed."""


class SeatState(StrEnum):
    """What a seat is to the pool."""

    WAITING = "waiting"
    """To be started at ``Place.start_at_s``."""
    RUNNING = "running"
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
    num_starts: int = 0
    deaths_in_a_row: int = 0
    taken_since_s: float | None = None
    earlier: Counter[str] = field(default_factory=Counter)
    """Rows by status of the actors that have died here."""

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
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClusterConfig,
        *,
        spec_of: Callable[[Seat], ActorSpec],
        device: str,
        say: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
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
            if place.state is SeatState.RUNNING:
                self._hear(place, now_s)
            if place.state is SeatState.WAITING and now_s >= place.start_at_s:
                self._start(place)

    def begin(self, corpus: Corpus, run_id: str, device_classes: Sequence[str]) -> None:
        """Let all open actors, and later ones as they open, collect a run for these device classes."""
        self._run = (corpus, run_id, frozenset(device_classes))
        for place in self.places.values():
            self._begin_if_open(place)

    def stop(self, *, drop: bool) -> None:
        """Ask all actors to end; nobody is started any more."""
        self._is_stopping = True
        for place in self.places.values():
            if place.actor is not None and place.state is SeatState.RUNNING:
                place.actor.stop(drop=drop)
            elif place.state is SeatState.WAITING:
                place.state, place.why = SeatState.DONE, "the run was stopped"

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
            place.seat: place.report.device
            for place in self.places.values()
            if place.report is not None and place.report.device is not None
        }

    @property
    def is_settled(self) -> bool:
        """Whether every seat has its device open, or never will."""
        return bool(self.places) and all(
            place.state not in (SeatState.WAITING, SeatState.RUNNING)
            or (place.report is not None and place.report.device is not None)
            for place in self.places.values()
        )

    @property
    def is_over(self) -> bool:
        """Whether no actor runs or will be started."""
        return not any(
            place.state in (SeatState.WAITING, SeatState.RUNNING) for place in self.places.values()
        )

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
            if place.seat.node_id not in alive and place.state in (
                SeatState.WAITING,
                SeatState.RUNNING,
            ):
                self._note_end(place, SeatState.GONE, "its node is gone")
        missing = tuple(text for _, text in unmatched_pools(nodes, self._config.pools))
        for text in missing:
            if text not in self.missing_labels:
                self._say(text)
        self.missing_labels = missing
        if self._is_stopping:
            return
        for seat in seats_of(nodes, self._config.pools, device=self._device):
            self.places.setdefault(seat, Place(seat=seat))

    def _start(self, place: Place) -> None:
        place.actor = self._runtime.start(self._spec_of(place.seat))
        place.state, place.report, place.has_begun = SeatState.RUNNING, None, False
        place.num_starts += 1

    def _hear(self, place: Place, now_s: float) -> None:
        assert place.actor is not None, "it runs"
        told = place.actor.poll()
        if told is None:
            return
        if isinstance(told, ActorGone):
            self._died(place, told.why, now_s)
            return
        if told.num_tasks_done:
            place.deaths_in_a_row = 0
        place.report = told
        self._begin_if_open(place)
        if told.state is ActorState.ENDED:
            place.actor.kill()
            if told.drained:
                self._note_end(place, SeatState.DRAINED, told.drained)
            else:
                place.state, place.why = SeatState.DONE, ""
        elif told.state is ActorState.FAILED:
            self._failed(place, told, now_s)

    def _failed(self, place: Place, told: ActorReport, now_s: float) -> None:
        assert place.actor is not None, "it has told"
        if told.kind is FailureKind.INTERNAL:
            self._died(place, told.detail, now_s)
            return
        place.actor.kill()
        if told.kind is FailureKind.TAKEN:
            place.taken_since_s = now_s if place.taken_since_s is None else place.taken_since_s
            if now_s - place.taken_since_s < _TAKEN_PATIENCE_S:
                place.state, place.start_at_s = SeatState.WAITING, now_s + 2.0
                return
        self._note_end(place, SeatState.DRAINED, told.detail)

    def _died(self, place: Place, why: str, now_s: float) -> None:
        assert place.actor is not None, "it has died"
        place.actor.kill()
        place.actor = None
        place.earlier = place.statuses
        if place.report is not None:
            place.report = ActorReport(
                state=ActorState.FAILED,
                detail=why,
                device=place.report.device,
                worker_id=place.report.worker_id,
            )
        place.deaths_in_a_row += 1
        if self._is_stopping:
            place.state, place.why = SeatState.DONE, why
        elif place.deaths_in_a_row > self._config.max_restarts:
            detail = f"its actor died {place.deaths_in_a_row} times in a row: {why}"
            self._note_end(place, SeatState.DRAINED, detail)
        else:
            self._say(f"{place.seat.name}: its actor died and is started again: {why}")
            place.state = SeatState.WAITING
            place.start_at_s = now_s + self._config.restart_delay_s

    def _begin_if_open(self, place: Place) -> None:
        told = place.report
        if self._run is None or place.has_begun or told is None or place.actor is None:
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
            self._note_end(place, SeatState.DRAINED, why)

    def _note_end(self, place: Place, state: SeatState, why: str) -> None:
        place.state, place.why = state, why
        self._say(f"{place.seat.name}: {state.value}: {why}")
