"""Find the place of a task in the plan by its id, with eight bytes of memory per task.

Owns the packed tables of a plan's ids and the search for tasks without a result. An id is a hash,
so finding a task means hashing all tasks of its device class, about 1 µs per task. Only a ledger
rebuild and the final count use the tables, and drop them afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from llmperf_common.ids import TASK_HEAD_BYTES, task_id_heads
from workers.plan.plan import Plan, Task

_HEAD_DIGITS = 2 * TASK_HEAD_BYTES
_MOST_ALIKE = 64
"""Maximum entries compared per search; even two ids of a class that agree in 40 bits are rare."""


class TaskIndex:
    """Finds tasks of one plan by id.

    Device classes are hashed one after the other, only as far as a search needs. The class in which
    the last task was found is searched first, because a shard holds the tasks of one class and
    callers search shard by shard.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made: list[_ClassTable] = []
        self._others = (
            _ClassTable(number * len(plan.kernels), heads)
            for number, heads in enumerate(class_heads(plan))
        )

    def index_of(self, task_id: str) -> int:
        """Return the index of a task.

        Raises:
            KeyError: The plan has no task of this id.
        """
        try:
            head = int(task_id[:_HEAD_DIGITS], 16)
        except ValueError:
            raise KeyError(task_id) from None
        for place, table in enumerate(self._made):
            index = self._found(table, head, task_id)
            if index is not None:
                self._made.insert(0, self._made.pop(place))
                return index
        for table in self._others:
            self._made.insert(0, table)
            index = self._found(table, head, task_id)
            if index is not None:
                return index
        raise KeyError(task_id)

    def _found(self, table: _ClassTable, head: int, task_id: str) -> int | None:
        for index in table.candidates(head):
            if self._plan.task(index).task_id == task_id:
                return index
        return None


class _ClassTable:
    """The sorted ids of one device class, 8 bytes each.

    An entry holds the leading bits of an id. Its lowest bits, as many as are needed, hold the
    kernel's number. Ids whose leading bits agree are neighbours; the whole ids are then compared.
    """

    def __init__(self, first: int, heads: npt.NDArray[np.uint64]) -> None:
        self._first = first
        self._bits = max(1, (len(heads) - 1).bit_length())
        bits = np.uint64(self._bits)
        self._entries = heads >> bits << bits | np.arange(len(heads), dtype=np.uint64)
        self._entries.sort()

    def candidates(self, head: int) -> Iterator[int]:
        """Yield the indices of the tasks whose ids may begin with these 64 bits."""
        if not 0 <= head < 2**64:
            return
        wanted = head >> self._bits
        place = int(np.searchsorted(self._entries, np.uint64(wanted << self._bits)))
        for entry in map(int, self._entries[place : place + _MOST_ALIKE]):
            if entry >> self._bits != wanted:
                return
            yield self._first + (entry & ((1 << self._bits) - 1))


def class_heads(plan: Plan) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield the leading 16 hex digits of the task ids, as numbers: one array per device class."""
    kernel_ids = [kernel.kernel_id for kernel in plan.kernels]
    for device_class in plan.device_classes:
        raw = task_id_heads(
            plan_hash=plan.plan_hash, kernel_ids=kernel_ids, device_class=device_class.name
        )
        yield np.frombuffer(raw, f">u{TASK_HEAD_BYTES}").astype(np.uint64)


def first_pending(plan: Plan, done: npt.NDArray[np.uint64], *, limit: int) -> list[Task]:
    """Return the first tasks of a plan that have no result.

    Args:
        plan: its tasks are searched in order.
        done: leading 16 hex digits of the ids of finished tasks, as ascending numbers.
        limit: maximum number of tasks to return.
    """
    found: list[Task] = []
    first = 0
    for heads in class_heads(plan):
        places = np.flatnonzero(~_contains(done, heads))[: limit - len(found)]
        found += [plan.task(first + int(place)) for place in places]
        first += len(heads)
        if len(found) == limit:
            break
    return found


def _contains(
    ascending: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == wanted
    return found
