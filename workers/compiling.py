"""Compile children: sources in, binaries out, whatever the compiler does.

Owns the pool and its queue. A compiler that crashes is tried once more in a fresh child, one that does not
finish is killed; either way the task gets its coded row.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.failures import RETRY_RULES, Failure, FailureCode, Retry, Stage
from workers.channel import (
    ChildCrashed,
    Compiled,
    CompileFailed,
    CompileJob,
    CompilerReady,
    FromChild,
)
from workers.child import Child
from workers.run_children import START_TIMEOUT_S
from workers.task_state import TaskState


@dataclass(slots=True, kw_only=True)
class _Slot:
    child: Child
    state: TaskState | None = None
    report: str = ""
    is_ready: bool = False


class CompilePool:
    """Up to ``num_children`` compilers; single-threaded, driven by its owner's polling."""

    def __init__(
        self,
        *,
        start_child: Callable[[str], Child],
        scratch: Path,
        num_children: int,
        timeout_s: float,
    ) -> None:
        self._start_child = start_child
        self._scratch = scratch
        self._num_children = num_children
        self._timeout_s = timeout_s
        self._waiting: deque[TaskState] = deque()
        self._slots: list[_Slot] = []
        self._finished: list[TaskState] = []
        self._names = itertools.count()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing compiles."""
        return not self._waiting and not self._busy_slots()

    def submit(self, state: TaskState) -> None:
        """Queue a task for compiling."""
        self._waiting.append(state)

    def start_waiting(self) -> None:
        """Hand waiting tasks to idle children, starting children as needed."""
        while self._waiting:
            slot = self._idle_slot()
            if slot is None:
                return
            slot.state = self._waiting.popleft()
            slot.state.num_compile_attempts += 1
            job = CompileJob(
                kernel=slot.state.task.kernel, binary_path=str(self.binary_path(slot.state))
            )
            if not slot.child.send(job):
                self._child_gone(slot)

    def children(self) -> list[Child]:
        """The children to watch for messages."""
        return [slot.child for slot in self._slots]

    def handle(self, child: Child) -> None:
        """Take in what ``child`` has sent."""
        slot = next(slot for slot in self._slots if slot.child is child)
        messages, hung_up = child.receive()
        for message in messages:
            self._take(slot, message)
        if hung_up:
            self._child_gone(slot)

    def check_deadlines(self, now_s: float) -> None:
        """Kill the compilers that take too long."""
        for slot in self._busy_slots():
            limit_s = self._timeout_s if slot.is_ready else START_TIMEOUT_S
            if now_s - slot.child.last_heard_s > limit_s:
                self._discard(slot)
                detail = f"killed after {limit_s:g} s without an answer (limits.build_timeout_s)"
                self._fail(slot, FailureCode.BUILD_TIMEOUT, detail)

    def take_finished(self) -> list[TaskState]:
        """Return the tasks compiled since the last call; those that failed are complete."""
        finished, self._finished = self._finished, []
        return finished

    def binary_path(self, state: TaskState) -> Path:
        """Where the binary of a task lies."""
        return self._scratch / f"{state.task.task_id}.bin"

    def drop(self, tasks: set[int]) -> None:
        """Forget these tasks; a compiler at work on one is killed."""
        self._waiting = deque(s for s in self._waiting if s.lease.task not in tasks)
        for state in self._finished:
            if state.lease.task in tasks:
                self.binary_path(state).unlink(missing_ok=True)
        self._finished = [s for s in self._finished if s.lease.task not in tasks]
        for slot in self._busy_slots():
            if slot.state is not None and slot.state.lease.task in tasks:
                self._discard(slot)

    def waiting_states(self) -> list[TaskState]:
        """All tasks of the pool, waiting, compiling or finished."""
        busy = [slot.state for slot in self._slots if slot.state is not None]
        return [*self._waiting, *busy, *self._finished]

    def close(self) -> None:
        """Kill every child."""
        for slot in list(self._slots):
            self._discard(slot)

    def _busy_slots(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.state is not None]

    def _idle_slot(self) -> _Slot | None:
        for slot in self._slots:
            if slot.state is None:
                return slot
        if len(self._slots) >= self._num_children:
            return None
        slot = _Slot(child=self._start_child(f"compile-{next(self._names)}"))
        self._slots.append(slot)
        return slot

    def _take(self, slot: _Slot, message: FromChild) -> None:
        state = slot.state
        if isinstance(message, CompilerReady):
            slot.is_ready = True
            return
        if isinstance(message, ChildCrashed):
            slot.report = message.traceback
            return
        assert isinstance(message, Compiled | CompileFailed), message
        if state is None:
            return
        slot.state = None
        if isinstance(message, CompileFailed):
            state.note_build(
                options=state.task.kernel.build_options,
                log=message.failure.detail,
                seconds=message.seconds,
                binary=None,
            )
            state.fail_whole(message.failure)
        else:
            state.note_build(
                options=message.options,
                log=message.log,
                seconds=message.seconds,
                binary=self.binary_path(state).read_bytes(),
            )
        self._finished.append(state)

    def _child_gone(self, slot: _Slot) -> None:
        self._discard(slot)
        state = slot.state
        if state is None:
            return
        retry = RETRY_RULES[FailureCode.COMPILER_CRASH] is Retry.ONCE_IN_FRESH_CHILD
        if slot.report:
            self._fail(slot, FailureCode.INTERNAL_ERROR, slot.report)
        elif retry and state.num_compile_attempts < 2:
            slot.state = None
            self._waiting.appendleft(state)
        else:
            self._fail(slot, FailureCode.COMPILER_CRASH, slot.child.describe_end())

    def _fail(self, slot: _Slot, code: FailureCode, detail: str) -> None:
        assert slot.state is not None, "only a child at work can fail its task"
        seconds = time.monotonic() - slot.child.last_heard_s
        slot.state.note_build(
            options=slot.state.task.kernel.build_options, log=detail, seconds=seconds, binary=None
        )
        slot.state.fail_whole(Failure(code=code, stage=Stage.BUILD, detail=detail))
        self._finished.append(slot.state)
        slot.state = None

    def _discard(self, slot: _Slot) -> None:
        slot.child.kill()
        self._slots.remove(slot)
