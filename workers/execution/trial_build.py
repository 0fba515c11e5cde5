"""Build one kernel and drop the result, to check whether this device can build anything."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from llmperf_common.ledger.protocol import Lease
from workers.execution.compiling import CompileWork
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan, Task
from workers.sandbox.child import Child
from workers.sandbox.child_pool import ChildPool

_NO_LEASE = Lease(task=-1, epoch=0, token=0, attempt=0)


def is_buildable(
    task: Task, plan: Plan, *, start_child: Callable[[str], Child], work: CompileWork
) -> bool:
    """Build a task's kernel in a new child; return whether that succeeded.

    Raises:
        ChildStartError: The child cannot be started.
    """
    state = TaskState(
        plan=plan, task=task, lease=_NO_LEASE, device_id="", worker_id="", now_us=lambda: 0
    )
    pool: ChildPool[TaskState] = ChildPool(
        start_child=start_child, name="build", work=work, num_children=1
    )
    pool.submit(state)
    try:
        while not pool.has_finished:
            pool.start_waiting()
            for child in select.select(pool.children(), [], [], 0.1)[0]:
                pool.handle(child)
            pool.check_deadlines(time.monotonic())
    finally:
        pool.close()
        work.forget(state)
    return state.build is not None and state.build.binary_sha256 is not None
