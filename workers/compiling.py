"""Compiling as the work of killable children: sources in, binaries out, whatever the compiler does.

Owns what a build costs its task. A compiler that crashes is tried once more in a fresh child, one that does not
finish is killed; either way the task gets its coded row. The children: ``child_pool.py``.
"""

from __future__ import annotations

from pathlib import Path

from llmperf_common.failures import RETRY_RULES, Failure, FailureCode, Retry, Stage
from workers.channel import Compiled, CompileFailed, CompileJob, FromChild
from workers.task_state import TaskState


class CompileWork:
    """The ``PoolWork`` of compile children; ``scratch`` holds the binaries of tasks in hand."""

    def __init__(self, *, scratch: Path, timeout_s: float) -> None:
        self._scratch = scratch
        self._timeout_s = timeout_s

    @property
    def timeout_s(self) -> float:
        """A compiler without an answer for this long is killed."""
        return self._timeout_s

    def binary_path(self, state: TaskState) -> Path:
        """Where the binary of a task lies."""
        return self._scratch / f"{state.task.task_id}.bin"

    def job(self, state: TaskState) -> CompileJob:
        """Return the job, and count the attempt."""
        state.num_compile_attempts += 1
        return CompileJob(kernel=state.task.kernel, binary_path=str(self.binary_path(state)))

    def take(self, state: TaskState, answer: FromChild) -> None:
        """Note the build; where it failed the task is complete."""
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
            )

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """The task is complete with ``build_timeout``."""
        detail = f"killed after {after_s:g} s without an answer (limits.build_timeout_s)"
        _fail(state, FailureCode.BUILD_TIMEOUT, detail, after_s)

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Try once more, or complete the task with ``compiler_crash``."""
        retry = RETRY_RULES[FailureCode.COMPILER_CRASH] is Retry.ONCE_IN_FRESH_CHILD
        if report:
            _fail(state, FailureCode.INTERNAL_ERROR, report, seconds)
        elif retry and state.num_compile_attempts < 2:
            return True
        else:
            _fail(state, FailureCode.COMPILER_CRASH, how, seconds)
        return False

    def forget(self, state: TaskState) -> None:
        """Remove the binary."""
        self.binary_path(state).unlink(missing_ok=True)


def _fail(state: TaskState, code: FailureCode, detail: str, seconds: float) -> None:
    state.note_build(
        options=state.task.kernel.build_options, log=detail, seconds=seconds, binary=None
    )
    state.fail_whole(Failure(code=code, stage=Stage.BUILD, detail=detail))
