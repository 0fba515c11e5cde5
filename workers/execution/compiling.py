"""Compile kernels in killable children: every task gets a binary or a coded failure.

Owns the retries. After a compiler's crash, a new child builds the kernel once more. A compiler that
exceeds the time limit is killed. After the second crash, or after such a kill, the task gets its
failed row. The first kill by another process does not count. If a child dies after the build, while
it reads the kernel's resources, the task is built once more, and the resources are not read.
``child_pool.py`` owns the children. ``is_buildable`` checks whether this device can build anything.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from pathlib import Path

from llmperf_common.awake_clock import awake_s
from llmperf_common.failures import RETRY_RULES, Failure, FailureCode, Retry, Stage
from llmperf_common.ledger.protocol import Lease
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan, Task
from workers.sandbox.child import Child
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.messages import Compiled, CompileFailed, CompileJob, FromChild

_logger = logging.getLogger(__name__)

_NO_LEASE = Lease(task=-1, epoch=0, token=0, attempt=0)
_RESOURCES_LIMIT_S = 20.0
"""Seconds to find a kernel's registers. A second compiler takes 0.05 s, the first CUDA context
0.3 s, and some seconds on hosts with many GPUs."""
_MOST_RESOURCES_DEATHS = 3
"""Number of deaths in a row while resources were read. Then no more resources are read, because the
reader is at fault, not a kernel.
"""


class CompileWork:
    """The ``PoolWork`` of compile children.

    Args:
        scratch: the folder for the binaries of tasks in hand.
        timeout_s: seconds for one build.
        reads_resources: whether to read the registers and memory of the machine code, too. The
            reading ends when ``_MOST_RESOURCES_DEATHS`` children in a row have died during it.
    """

    def __init__(self, *, scratch: Path, timeout_s: float, reads_resources: bool = False) -> None:
        self._scratch = scratch
        self._timeout_s = timeout_s
        self._reads_resources = reads_resources
        self._asked: set[str] = set()
        self._died_of_resources: set[str] = set()
        self._num_deaths_in_a_row = 0
        self._told: set[str] = set()

    @property
    def timeout_s(self) -> float:
        """Seconds without an answer after which a compile child is killed."""
        return self._timeout_s

    def binary_path(self, state: TaskState) -> Path:
        """Return where the binary of a task is written."""
        return self._scratch / f"{state.task.task_id}.bin"

    def job(self, state: TaskState) -> CompileJob:
        """Return the job, and count the attempt."""
        state.num_compile_attempts += 1
        path = self.binary_path(state)
        path.unlink(missing_ok=True)  # if the file exists later, this attempt has built the kernel
        limit_s = None
        self._asked.discard(state.task.task_id)
        if self._reads_resources and state.num_compile_attempts == 1:
            self._asked.add(state.task.task_id)
            limit_s = min(_RESOURCES_LIMIT_S, self._timeout_s / 2)
        return CompileJob(
            kernel=state.task.kernel, binary_path=str(path), resources_limit_s=limit_s
        )

    def excuses_kill(self, state: TaskState) -> bool:
        """Excuse the first kill: do not count its attempt. Return False for a later kill."""
        is_excused = state.excuse_kill("build")
        state.num_compile_attempts -= is_excused
        return is_excused

    def take(self, state: TaskState, answer: FromChild) -> bool:
        """Note the build; a failed build completes the task."""
        assert isinstance(answer, Compiled | CompileFailed), answer
        if isinstance(answer, CompileFailed):
            state.note_build(
                options=state.task.kernel.build_options,
                log=answer.failure.detail,
                seconds=answer.seconds,
                binary=None,
            )
            state.fail_whole(answer.failure)
        else:
            state.note_build(
                options=answer.options,
                log=answer.log,
                seconds=answer.seconds,
                binary=self.binary_path(state).read_bytes(),
                resources=answer.resources,
            )
            if answer.resources is not None:
                self._num_deaths_in_a_row = 0
            if answer.no_resources and answer.no_resources not in self._told:
                self._told.add(answer.no_resources)
                name = state.task.kernel.name
                _logger.info("%s: registers not known: %s", name, answer.no_resources)
        return True

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """Complete the task with ``build_timeout``."""
        detail = f"killed after {after_s:g} s without an answer (limits.build_timeout_s)"
        _fail(state, FailureCode.BUILD_TIMEOUT, detail, after_s)

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Try once more, or complete the task with ``compiler_crash``."""
        if state.task.task_id in self._asked and self.binary_path(state).exists():
            self._note_death_of_resources(state, report or how)
            return True
        retry = RETRY_RULES[FailureCode.COMPILER_CRASH] is Retry.ONCE_IN_FRESH_CHILD
        # A child's death while it read the resources does not count against the build.
        most = 2 + (state.task.task_id in self._died_of_resources)
        if report:
            _fail(state, FailureCode.INTERNAL_ERROR, report, seconds)
        elif retry and state.num_compile_attempts < most:
            return True
        else:
            _fail(state, FailureCode.COMPILER_CRASH, how, seconds)
        return False

    def forget(self, state: TaskState) -> None:
        """Remove the binary."""
        self.binary_path(state).unlink(missing_ok=True)
        self._asked.discard(state.task.task_id)

    def _note_death_of_resources(self, state: TaskState, how: str) -> None:
        self._died_of_resources.add(state.task.task_id)
        _logger.warning("%s: registers not known: %s", state.task.kernel.name, how)
        self._num_deaths_in_a_row += 1
        if self._num_deaths_in_a_row >= _MOST_RESOURCES_DEATHS:
            self._reads_resources = False
            _logger.warning(
                "the kernels' registers are not read in the rest of this run: %d child processes "
                "in a row died while they read them",
                _MOST_RESOURCES_DEATHS,
            )


def _fail(state: TaskState, code: FailureCode, detail: str, seconds: float) -> None:
    state.note_build(
        options=state.task.kernel.build_options, log=detail, seconds=seconds, binary=None
    )
    state.fail_whole(Failure(code=code, stage=Stage.BUILD, detail=detail))


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
            pool.check_deadlines(awake_s())
    finally:
        pool.close()
        work.forget(state)
    return state.build is not None and state.build.binary_sha256 is not None
