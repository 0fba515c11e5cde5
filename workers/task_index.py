"""From task ids back to places in the plan, at eight bytes a task.

Owns the packed table of a plan's ids and the search for tasks without a result. An id is a hash, so a task is found by
hashing all of them (about 1 µs each); only a ledger's rebuild and the final count ask for it, and drop it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from llmperf_common.ids import TASK_HEAD_BYTES, task_id_heads
from workers.plan import Plan, Task

_HEAD_DIGITS = 2 * TASK_HEAD_BYTES


class TaskIndex:
    """Finds tasks of one plan by id; the table is made when it is first asked.

    An entry is the id's leading bits, then the index in the lowest bits that it needs: one sort in place orders it.
    Ids whose leading bits agree lie side by side, and the whole id decides between them.

    Args:
        plan: at most 2^40 tasks, so that 24 bits of each id are left to search by.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.num_tasks <= 2**40, "an index must leave bits for the id"
        self._plan = plan
        self._index_bits = np.uint64(max(1, (plan.num_tasks - 1).bit_length()))
        self._table: npt.NDArray[np.uint64] | None = None

    def index_of(self, task_id: str) -> int:
        """Return the index of a task.

        Raises:
            KeyError: The plan has no task of this id.
        """
        try:
            head = np.uint64(int(task_id[:_HEAD_DIGITS], 16))
        except ValueError:
            raise KeyError(task_id) from None
        if self._table is None:
            self._table = self._packed()
        bits, table = self._index_bits, self._table
        wanted = head >> bits
        place = int(np.searchsorted(table, wanted << bits))
        while place < len(table) and table[place] >> bits == wanted:
            index = int(table[place] & ~(~np.uint64(0) << bits))
            if self._plan.task(index).task_id == task_id:
                return index
            place += 1
        raise KeyError(task_id)

    def _packed(self) -> npt.NDArray[np.uint64]:
        table = np.empty(self._plan.num_tasks, np.uint64)
        first = 0
        for heads in class_heads(self._plan):
            indices = np.arange(first, first + len(heads), dtype=np.uint64)
            table[first : first + len(heads)] = (
                heads >> self._index_bits << self._index_bits | indices
            )
            first += len(heads)
        table.sort()
        return table


def class_heads(plan: Plan) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield the leading 16 hex digits of the task ids of each device class, as numbers, in plan order."""
    kernel_ids = [kernel.kernel_id for kernel in plan.kernels]
    for device_class in plan.device_classes:
        raw = task_id_heads(
            plan_hash=plan.plan_hash, kernel_ids=kernel_ids, device_class=device_class.name
        )
        yield np.frombuffer(raw, f">u{TASK_HEAD_BYTES}").astype(np.uint64)


def first_pending(plan: Plan, done: npt.NDArray[np.uint64], *, limit: int) -> list[Task]:
    """Return the first tasks of a plan that have no result.

    Args:
        plan: the tasks.
        done: leading 16 hex digits of the ids of the finished ones, ascending.
        limit: how many at most.
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
