"""Processes as greenlets on one simulated clock; between any two operations another one may run.

Owns who runs when, the clock, blocking on locks, and death. Does not own what a fault does to the world.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import greenlet  # type: ignore[import-untyped]

from llmperf_common.store.files.filesystem import StoreError
from tests.simulation.decisions import Chooser, Decision

_OPERATION_S = 0.001
_MAX_POINTS = 3_000


class Crash(BaseException):
    """The process is gone, at this very operation; nothing may catch it."""


class Violation(Exception):  # noqa: N818 (nothing handles it: it is the finding)
    """Something that must always hold does not."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)  # what pickle calls it with
        self.kind = kind

    def __str__(self) -> str:
        return ": ".join(self.args)


class FileLock:
    """One lock file: shared by many or held by one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.holders: dict[int, bool] = {}

    def is_free(self, exclusive: bool) -> bool:
        """Whether it could be taken now."""
        return not self.holders or (not exclusive and True not in self.holders.values())


class Process:
    """One simulated process and what the scheduler knows of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_dead = False
        self.is_over = False
        self.wake_s = 0.0
        self.wants: tuple[FileLock, bool] | None = None
        self.dies_at_statement = 0
        self.finds_disk_full = False
        self.unanswered = 0
        self.is_heard = False
        self.wants_abort = False
        self.has_lost_folder = False
        self.touched: set[str] = set()
        """Shards that it has written or looked at since it last published: it may be about to list them."""
        self.request_stop: Callable[[], None] = lambda: None
        self.on_crash: Callable[[], None] = lambda: None
        self.greenlet: greenlet.greenlet | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it could run if the clock were at its wake-up time."""
        return self.wants is None or self.wants[0].is_free(self.wants[1])


class Scheduler:
    """Runs processes until all are over.

    Args:
        chooser: decides at every point.
        act: carries out a decision other than going on; may raise Crash for the running process.
        trace: filled with (time, process, operation) if not None.
    """

    def __init__(
        self,
        *,
        chooser: Chooser,
        act: Callable[[Decision, Process], None],
        trace: list[tuple[float, int, str]] | None = None,
    ) -> None:
        self.now_s = 100.0
        self.suspended_s = 0.0
        self.processes: list[Process] = []
        self.num_points = 0
        self.trace = trace
        self.is_peaceful = False
        self._choose = chooser.at
        self._act = act
        self._hub = greenlet.getcurrent()
        self._next: Process | None = None
        self.current = Process(-1)

    def start(self, body: Callable[[Process], None]) -> Process:
        """Add a process that runs ``body``."""
        process = Process(len(self.processes))
        process.wake_s = self.now_s

        def run() -> None:
            try:
                body(process)
            except Crash:
                self.note("dies")
                process.on_crash()
            except StoreError as error:
                self.note(f"ends: {error!r}")
            except Violation:
                raise
            except Exception as error:  # whatever else ends a collector is a bug
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{error!r} at {where.filename}:{where.lineno}"
                raise Violation("unexpected exception", what) from error
            process.is_dead = process.is_over = True

        process.greenlet = greenlet.greenlet(run, self._hub)
        self.processes.append(process)
        return process

    def run(self) -> None:
        """Run until no process is left."""
        while True:
            live = [process for process in self.processes if not process.is_over]
            if not live:
                return
            ready = [process for process in live if process.is_ready]
            if not ready:
                raise Violation("deadlock", f"{len(live)} processes wait for locks")
            chosen = self._next
            self._next = None
            if chosen is None or chosen not in ready:
                chosen = min(ready, key=_wake_order)
            self.now_s = max(self.now_s, chosen.wake_s)
            self.current = chosen
            assert chosen.greenlet is not None
            chosen.greenlet.switch()

    def point(self, operation: str) -> None:
        """The running process is about to do ``operation``: anything may happen first."""
        process = self.current
        if process.is_dead:
            raise Crash
        position = self.num_points
        self.num_points = position + 1
        self.now_s += _OPERATION_S
        if self.trace is not None:
            self.note(f"[{position}] {operation}")
        decision = None if self.is_peaceful else self._choose(position)
        if decision is not None:
            self.note(f"    --- {decision.kind} {decision.number} ---")
            self._act(decision, process)
        elif position > _MAX_POINTS:
            raise Violation("no progress", f"no end after {position} operations")

    def switch_to(self, process: Process | None) -> None:
        """Let ``process`` run (None: the process that is due first); returns when the caller is chosen again."""
        caller = self.current
        self._next = process
        self._hub.switch()
        if caller.is_dead:
            raise Crash

    def sleep(self, seconds: float, why: str) -> None:
        """The running process waits; others run meanwhile."""
        self.current.wake_s = self.now_s + seconds
        self.point(why)
        self.switch_to(None)

    def wait_for(self, lock: FileLock, *, exclusive: bool) -> None:
        """Block the running process until it can take ``lock``, and take it."""
        process = self.current
        while not lock.is_free(exclusive):
            process.wants = (lock, exclusive)
            self.switch_to(None)
            process.wants = None
        lock.holders[process.number] = exclusive

    def kill(self, process: Process) -> None:
        """End a process that is not running at the point where it is."""
        process.is_dead = True
        assert process.greenlet is not None
        if process.greenlet:
            before, self.current = self.current, process
            process.greenlet.parent = greenlet.getcurrent()  # where it returns to when it has ended
            process.greenlet.throw(Crash())
            self.current = before
        process.is_over = True

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append((self.now_s, self.current.number, text))

    def close(self) -> None:
        """End what still runs, after a violation."""
        for process in self.processes:
            if not process.is_over:
                self.kill(process)


def _wake_order(process: Process) -> tuple[float, int]:
    return (process.wake_s, process.number)
