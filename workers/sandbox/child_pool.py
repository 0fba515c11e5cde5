"""Let a few killable children work through a queue, even if items make them hang or crash.

Owns the children, the queue and the deadlines. ``PoolWork`` decides what a job is, what an answer
means and what a death costs: ``compiling.py``, ``analysing.py``, ``work/children.py``.
"""

from __future__ import annotations

import itertools
import logging
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from llmperf_common.awake_clock import POLL_S, awake_s
from workers.sandbox.child import Child
from workers.sandbox.messages import ChildCrashed, CompilerReady, FromChild, ToChild
from workers.sandbox.run_children import START_TIMEOUT_S, ChildStartError, start_failure

_logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class PoolWork(Protocol[ItemT_contra]):
    """What is done with each item. All methods run in the thread of the pool's owner."""

    @property
    def timeout_s(self) -> float:
        """Seconds after which a child that has not sent its last answer is killed."""
        ...

    def job(self, item: ItemT_contra) -> ToChild:
        """Return the message that begins the work on ``item``, and count the attempt."""
        ...

    def excuses_kill(self, item: ItemT_contra) -> bool:
        """Return whether a kill of the child by another process does not count as an attempt."""
        ...

    def take(self, item: ItemT_contra, answer: FromChild) -> bool:
        """Note the child's answer; return whether it was the last one for this item."""
        ...

    def timed_out(self, item: ItemT_contra, after_s: float) -> None:
        """Note that the child was killed because it took longer than ``after_s``."""
        ...

    def died(self, item: ItemT_contra, how: str, report: str, seconds: float) -> bool:
        """Note that a child ended after ``seconds`` of work, and ``how``.

        ``report`` is the traceback of its exception, if any. Return True if another child is to try
        the item again.
        """
        ...

    def forget(self, item: ItemT_contra) -> None:
        """Remove the files of a finished item whose result is not wanted."""
        ...


@dataclass(slots=True, kw_only=True)
class _Slot(Generic[ItemT]):
    child: Child
    item: ItemT | None = None
    report: str = ""
    is_ready: bool = False
    has_job: bool = False
    """Whether the child has the item. It gets the item once it is ready, so that a failed start
    costs the item no attempt."""
    began_s: float = 0.0
    """When the item's time began: when the child got it, or at the child's ``CompilerReady``."""


_MAX_FAILED_STARTS = 3
"""Number of failed starts in a row after which no more children are started. No item has begun, so
no item can be the cause."""


class ChildPool(Generic[ItemT]):
    """Up to ``num_children`` children; single-threaded, driven by calls of its owner.

    Args:
        start_child: starts a child whose scratch folder has the given name.
        name: prefix of the scratch folders' names.
        work: what is done with each item.
        num_children: maximum number of children at once.
    """

    def __init__(
        self,
        *,
        start_child: Callable[[str], Child],
        name: str,
        work: PoolWork[ItemT],
        num_children: int,
    ) -> None:
        self._start_child = start_child
        self._name = name
        self._work = work
        self._num_children = num_children
        self._waiting: deque[ItemT] = deque()
        self._slots: list[_Slot[ItemT]] = []
        self._finished: list[ItemT] = []
        self._numbers = itertools.count()
        self._num_failed_starts = 0

    @property
    def is_idle(self) -> bool:
        """Whether no item is waiting or being worked on."""
        return not self._waiting and not self._busy_slots()

    def warm_up(self, num_children: int) -> None:
        """Start children before there are items, up to this number and the pool's limit."""
        while len(self._slots) < min(num_children, self._num_children):
            self._add_slot()

    def await_started(self) -> None:
        """Wait until no child is starting; a failed start costs no item an attempt."""
        deadline_s = awake_s() + START_TIMEOUT_S
        while starting := [slot.child for slot in self._slots if not slot.is_ready]:
            if awake_s() > deadline_s:
                return
            for child in select.select(starting, [], [], POLL_S)[0]:
                self.handle(child)

    def allow(self, num_children: int) -> None:
        """Lower the limit of children to this number; never raise it."""
        self._num_children = min(self._num_children, num_children)

    def submit(self, item: ItemT) -> None:
        """Queue an item."""
        self._waiting.append(item)

    @property
    def num_busy(self) -> int:
        """Number of children that have an item."""
        return len(self._busy_slots())

    def start_waiting(self, *, most_busy: int | None = None) -> None:
        """Hand waiting items to idle children, starting children as needed.

        Args:
            most_busy: largest number of children that may have an item now; None: no limit.

        Raises:
            ChildStartError: Several children in a row have ended before they were ready.
        """
        while self._waiting and (most_busy is None or self.num_busy < most_busy):
            self._hear_idle()
            slot = self._idle_slot()
            if slot is None:
                return
            slot.item = self._waiting.popleft()
            slot.began_s = awake_s()
            if slot.is_ready:
                self._give(slot)

    def children(self) -> list[Child]:
        """Return the children to watch for messages."""
        return [slot.child for slot in self._slots]

    def handle(self, child: Child) -> None:
        """Process what ``child`` has sent."""
        slot = next(slot for slot in self._slots if slot.child is child)
        messages, hung_up = child.receive()
        for message in messages:
            self._take(slot, message)
        if hung_up:
            self._child_gone(slot)

    def step(self, wait_s: float) -> None:
        """Start waiting items, process what children send within ``wait_s`` s, and kill late ones.

        Returns earlier if a child sends something, and after ``POLL_S`` s at the latest. For an
        owner that watches only this pool. Raises ChildStartError.
        """
        self.start_waiting()
        by_descriptor = {child.fileno(): child for child in self.children()}
        for descriptor in select.select(list(by_descriptor), [], [], min(wait_s, POLL_S))[0]:
            child = by_descriptor[descriptor]
            if child in self.children():
                self.handle(child)
        self.check_deadlines(awake_s())

    def check_deadlines(self, now_s: float) -> None:
        """Kill the children that take too long. Raises ChildStartError, like ``start_waiting``."""
        for slot in self._busy_slots():
            limit_s = self._work.timeout_s if slot.is_ready else START_TIMEOUT_S
            if slot.item is None or now_s - slot.began_s <= limit_s:
                continue
            self._discard(slot)
            if not slot.has_job:
                self._failed_to_start(slot, f"no answer from it within {limit_s:g} s")
                continue
            self._work.timed_out(slot.item, limit_s)
            self._finished.append(slot.item)
            slot.item = None

    @property
    def has_finished(self) -> bool:
        """Whether ``take_finished`` would return an item."""
        return bool(self._finished)

    def take_finished(self) -> list[ItemT]:
        """Return the items finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_waiting(self, is_wanted: Callable[[ItemT], bool]) -> list[ItemT]:
        """Remove and return the wanted items that no child has begun."""
        taken = [item for item in self._waiting if is_wanted(item)]
        self._waiting = deque(item for item in self._waiting if not is_wanted(item))
        return taken

    def drop(self, is_lost: Callable[[ItemT], bool]) -> None:
        """Forget the lost items, and kill the children that work on one."""
        self._waiting = deque(item for item in self._waiting if not is_lost(item))
        for item in filter(is_lost, self._finished):
            self._work.forget(item)
        self._finished = [item for item in self._finished if not is_lost(item)]
        for slot in self._busy_slots():
            if slot.item is not None and is_lost(slot.item):
                self._discard(slot)

    def items(self) -> list[ItemT]:
        """All items of the pool: waiting, being worked on or finished."""
        busy = [slot.item for slot in self._slots if slot.item is not None]
        return [*self._waiting, *busy, *self._finished]

    def close(self) -> None:
        """Kill every child."""
        for slot in list(self._slots):
            self._discard(slot)

    def _hear_idle(self) -> None:
        """Process what idle children have sent; one that was started early may be ready or gone."""
        idle = [slot.child for slot in self._slots if slot.item is None]
        for child in select.select(idle, [], [], 0)[0] if idle else ():
            self.handle(child)

    def _busy_slots(self) -> list[_Slot[ItemT]]:
        return [slot for slot in self._slots if slot.item is not None]

    def _idle_slot(self) -> _Slot[ItemT] | None:
        idle = [slot for slot in self._slots if slot.item is None]
        if idle:
            return next((slot for slot in idle if slot.is_ready), idle[0])
        if len(self._slots) >= self._num_children:
            return None
        return self._add_slot()

    def _add_slot(self) -> _Slot[ItemT]:
        child = self._start_child(f"{self._name}-{next(self._numbers)}")
        fresh: _Slot[ItemT] = _Slot(child=child)
        self._slots.append(fresh)
        return fresh

    def _take(self, slot: _Slot[ItemT], message: FromChild) -> None:
        if isinstance(message, CompilerReady):
            is_first, slot.is_ready = not slot.is_ready, True
            slot.began_s = awake_s()
            if is_first:
                self._num_failed_starts = 0
                self._give(slot)
        elif isinstance(message, ChildCrashed):
            slot.report = message.traceback
        elif slot.item is not None:
            item = slot.item
            if self._work.take(item, message):
                slot.item, slot.has_job = None, False
                self._finished.append(item)

    def _give(self, slot: _Slot[ItemT]) -> None:
        """Send the slot's item to its child, which is ready."""
        if slot.item is None:
            return
        slot.has_job = True
        if not slot.child.send(self._work.job(slot.item)):
            self._child_gone(slot)

    def _failed_to_start(self, slot: _Slot[ItemT], why: str) -> None:
        """Take back the item of a child that never was ready; raise ChildStartError if repeated."""
        if slot.item is not None:
            self._waiting.appendleft(slot.item)
            slot.item = None
        self._num_failed_starts += not slot.child.was_killed_by_another
        _logger.warning("a process to %s kernels could not start: %s", self._name, why)
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise ChildStartError(start_failure(self._name, why))

    def _child_gone(self, slot: _Slot[ItemT]) -> None:
        if slot not in self._slots:
            return  # already handled: sending the item to it failed
        self._discard(slot)
        item = slot.item
        if not slot.is_ready and item is not None:
            self._failed_to_start(slot, slot.report or slot.child.describe_end())
            return
        if item is None:
            if slot.report:
                _logger.warning("a process to %s kernels ended: %s", self._name, slot.report)
            return
        slot.item = None
        seconds = awake_s() - slot.began_s
        how = slot.child.describe_end()
        if slot.child.was_killed_by_another and not slot.report and self._work.excuses_kill(item):
            _logger.warning("%s: killed by another process; retrying once: %s", self._name, how)
            self._waiting.appendleft(item)
        elif self._work.died(item, how, slot.report, seconds):
            self._waiting.appendleft(item)
        else:
            self._finished.append(item)

    def _discard(self, slot: _Slot[ItemT]) -> None:
        slot.child.kill()
        self._slots.remove(slot)
