"""One schedule: a little world, its processes, its faults, and then peace until everything is done.

Owns what each kind of fault does, and how one seed (with a list of decisions) becomes one schedule.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

from llmperf_common.store.upkeep import rebuild
from llmperf_common.store.upkeep import sweep as sweep_module
from tests.simulation import memo
from tests.simulation.collector import collect
from tests.simulation.decisions import Chooser, Decision, Kind, RandomChooser, ReplayChooser
from tests.simulation.disk import Disk
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Crash, Process, Scheduler, Violation
from tests.simulation.setup import NOTHING_PLANTED, TTL_S, Planted, Setup
from tests.simulation.work import SimPlan

_MAX_PROCESSES = 12
_REVIVAL_POINTS = 100
"""While faults go on, the world starts a collector again when all have ended."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a schedule went. ``taken`` are its decisions: enough, with the seed, to repeat it.

    ``folders`` are the dataset's files at the end.
    """

    seed: int
    taken: dict[int, Decision]
    num_points: int
    coverage: Counter[str]
    violation: Violation | None
    folders: dict[str, dict[str, bytes]]
    trace: list[tuple[float, int, str]] = field(default_factory=list)


class World:
    """One schedule in the making."""

    def __init__(
        self,
        *,
        setup: Setup,
        chooser: Chooser,
        planted: Planted,
        trace: list[tuple[float, int, str]] | None,
    ) -> None:
        self.setup = setup
        self.planted = planted
        self.disk = Disk()
        self.oracle = Oracle(
            self.disk, SimPlan(num_tasks=setup.num_tasks).task_ids, memo.read_footer
        )
        self.scheduler = Scheduler(chooser=chooser, act=self._act, trace=trace)
        self._num_stems = 0

    def run(self) -> None:
        """Run processes until faults stop, then one more that finishes what is left; check the end."""
        for _ in range(self.setup.num_processes):
            self._start_collector()
        self.scheduler.run()
        while self.scheduler.num_points < _REVIVAL_POINTS and not self._is_crowded:
            self._start_collector()
            self.scheduler.run()
        self.scheduler.is_peaceful = True
        self.disk.ledger_is_unreadable = False
        self._start_collector()
        self.scheduler.run()
        self.oracle.check_end()

    @property
    def _is_crowded(self) -> bool:
        return len(self.scheduler.processes) >= _MAX_PROCESSES

    def _start_collector(self) -> None:
        body = functools.partial(
            collect,
            setup=self.setup,
            planted=self.planted,
            disk=self.disk,
            scheduler=self.scheduler,
            oracle=self.oracle,
            new_stem=self._new_stem,
        )
        self.scheduler.start(body)

    def _new_stem(self, epoch: int) -> str:
        self._num_stems += 1
        return f"e{epoch:06d}-{self._num_stems}"

    def _act(self, decision: Decision, process: Process) -> None:
        self.disk.coverage[decision.kind] += 1
        _ACTIONS[decision.kind](self, decision.number, process)

    def _switch(self, number: int, process: Process) -> None:
        others = [p for p in self.scheduler.processes if not p.is_over and p is not process]
        ready = [p for p in others if p.is_ready]
        if ready:
            self.scheduler.switch_to(ready[number % len(ready)])

    def _pause(self, number: int, process: Process) -> None:
        process.wake_s = self.scheduler.now_s + TTL_S * (1 + number % 3)
        self.scheduler.switch_to(None)

    def _crash(self, number: int, process: Process) -> None:
        del number
        process.is_dead = True
        raise Crash

    def _crash_in_transaction(self, number: int, process: Process) -> None:
        process.dies_at_statement = number + 1

    def _power_cut(self, number: int, process: Process) -> None:
        for other in self.scheduler.processes:
            if other is not process and not other.is_over:
                self.scheduler.kill(other)
        self._crash(number, process)

    def _start(self, number: int, process: Process) -> None:
        del number, process
        if not self._is_crowded:
            self._start_collector()

    def _stop(self, number: int, process: Process) -> None:
        del number
        process.request_stop()

    def _abort(self, number: int, process: Process) -> None:
        del number
        process.request_stop()
        process.wants_abort = True

    def _wipe(self, number: int, process: Process) -> None:
        del number, process
        self.disk.wipe_ledger()

    def _unreadable(self, number: int, process: Process) -> None:
        del number, process
        self.disk.ledger_is_unreadable = True

    def _suspend(self, number: int, process: Process) -> None:
        del process
        self.scheduler.suspended_s += TTL_S * (1 + number % 3)

    def _away(self, number: int, process: Process) -> None:
        process.unanswered = 1 + number // 2
        process.is_heard = number % 2 == 0

    def _no_space(self, number: int, process: Process) -> None:
        del number
        process.finds_disk_full = True

    def _roll_back(self, number: int, process: Process) -> None:
        del process
        epoch = self.disk.roll_back(number / 12)
        if epoch is not None:
            self.disk.coverage["put an earlier ledger in place"] += 1
            self.oracle.rolled_back(epoch)

    def _restore(self, number: int, process: Process) -> None:
        del process
        epoch = self.disk.restore(number / 12)
        if epoch is not None:
            self.disk.coverage["restored a ledger in use"] += 1
            self.oracle.rolled_back(epoch)

    def _lose_manifests(self, number: int, process: Process) -> None:
        del process
        names = sorted(
            name for name in self.disk.folders.get("", {}) if name.startswith("manifest-")
        )
        if not names:
            return
        gone = (
            names if number == 1 else [names[-1] if number % 2 == 0 else names[number % len(names)]]
        )
        for name in gone:
            del self.disk.folders[""][name]
        self.oracle.lost_manifests(gone)

    def _lose_shard(self, number: int, process: Process) -> None:
        del process
        in_hand = {
            name for one in self.scheduler.processes if not one.is_over for name in one.touched
        }
        names = [
            f"{table}/{name}"
            for table in ("kernels", "samples")
            for name in sorted(self.disk.folders.get(table, {}))
            if f"{table}/{name}" not in self.oracle.ever_listed and f"{table}/{name}" not in in_hand
        ]
        if names:
            folder, _, base = names[number % len(names)].partition("/")
            del self.disk.folders[folder][base]
            self.disk.coverage["a shard vanished"] += 1
            self.oracle.lost_shard(f"{folder}/{base}")

    def _lose_folder(self, number: int, process: Process) -> None:
        del number
        process.has_lost_folder = True


_ACTIONS: dict[Kind, Callable[[World, int, Process], None]] = {
    Kind.SWITCH: World._switch,
    Kind.PAUSE: World._pause,
    Kind.CRASH: World._crash,
    Kind.CRASH_IN_TRANSACTION: World._crash_in_transaction,
    Kind.POWER_CUT: World._power_cut,
    Kind.START: World._start,
    Kind.STOP: World._stop,
    Kind.ABORT: World._abort,
    Kind.WIPE: World._wipe,
    Kind.UNREADABLE: World._unreadable,
    Kind.SUSPEND: World._suspend,
    Kind.AWAY: World._away,
    Kind.NO_SPACE: World._no_space,
    Kind.ROLL_BACK: World._roll_back,
    Kind.RESTORE: World._restore,
    Kind.LOSE_MANIFESTS: World._lose_manifests,
    Kind.LOSE_SHARD: World._lose_shard,
    Kind.LOSE_FOLDER: World._lose_folder,
}


def run_schedule(
    seed: int,
    *,
    planted: Planted = NOTHING_PLANTED,
    taken: dict[int, Decision] | None = None,
    with_trace: bool = False,
) -> Outcome:
    """Run one schedule; the same arguments give the same schedule, on any machine.

    Args:
        seed: everything is drawn from it.
        planted: the bug to look for, if any.
        taken: decisions to repeat instead of drawing them.
        with_trace: note every operation.
    """
    rng = random.Random(seed)
    setup = Setup.drawn(rng)
    chooser = RandomChooser(rng) if taken is None else ReplayChooser(taken)
    trace: list[tuple[float, int, str]] = []
    world = World(
        setup=setup, chooser=chooser, planted=planted, trace=trace if with_trace else None
    )
    violation = None
    with _replaced(planted):
        try:
            world.run()
        except Violation as error:
            violation = error
        finally:
            world.scheduler.close()
            world.disk.databases.give_back()
    return Outcome(
        seed=seed,
        taken=chooser.taken,
        num_points=world.scheduler.num_points,
        coverage=world.disk.coverage,
        violation=violation,
        folders=world.disk.folders,
        trace=trace,
    )


@contextlib.contextmanager
def _replaced(planted: Planted) -> Iterator[None]:
    """Put the memos (and a planted function) in the place of the shipped functions."""
    pure = (
        (rebuild, "decode", memo.decode),
        (rebuild, "read_footer", memo.read_footer),
        (sweep_module, "read_footer", memo.read_footer),
    )
    with contextlib.ExitStack() as stack:
        for target, name, function in (*pure, *planted.replaced):
            stack.enter_context(mock.patch.object(target, name, function))
        yield
