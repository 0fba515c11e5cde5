"""Hold back tasks that failed to build until a build succeeds: the machine may be at fault.

Decides which failures are doubtful, and for how long. If memory is short, the compiler is broken or
the disk is full, every build fails, but a failed row would blame the kernel for ever. So the first
failed builds wait, with their leases, until another task is built, or a kernel that was once built
for this dataset is built again. If no build succeeds, the run ends with ``NothingCompilesError``,
and any collector may claim the tasks again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.failures import Failure, FailureCode
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import TaskResult
from workers.execution.executor import FinishedTask
from workers.sandbox.address_space import memory_limit_text

_DOUBTFUL = frozenset(
    {
        FailureCode.BUILD_ERROR,
        FailureCode.BUILD_TIMEOUT,
        FailureCode.COMPILER_CRASH,
        FailureCode.INTERNAL_ERROR,
    }
)
_MOST_HELD = 100
"""Maximum number of tasks to hold back. A plan may have 100,000, each of which may crash two
compilers."""
_DETAIL_CHARACTERS = 600


class NothingCompilesError(LlmperfError):
    """No kernel could be built here; no failure was recorded."""

    exit_code = Exit.TOO_MANY_FAILURES


class DoubtfulBuilds:
    """Holds finished tasks back until it is known whether this machine can build kernels.

    Args:
        builds_again: builds a kernel that was once built for this dataset and returns whether that
            succeeded; False if there is no such kernel.
    """

    def __init__(self, builds_again: Callable[[], bool]) -> None:
        self._builds_again = builds_again
        self._held: list[FinishedTask] = []
        self._is_settled = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether enough builds have failed for a decision."""
        return len(self._held) >= _MOST_HELD

    @property
    def items(self) -> list[FinishedTask]:
        """The tasks that are held."""
        return list(self._held)

    @property
    def leases(self) -> list[Lease]:
        """The leases of the tasks that are held."""
        return [item.lease for item in self._held]

    def sift(self, items: Sequence[FinishedTask]) -> list[FinishedTask]:
        """Return the tasks that may be committed now; the first built task releases all others."""
        self._is_settled = self._is_settled or any(_was_built(item.result) for item in items)
        if self._is_settled:
            released, self._held = [*self._held, *items], []
            return released
        self._held += [item for item in items if _is_doubtful(item.result)]
        return [item for item in items if not _is_doubtful(item.result)]

    def settle(self) -> list[FinishedTask]:
        """Decide now whether kernels can be built here; return the tasks that may be committed.

        Raises:
            NothingCompilesError: No kernel could be built; the tasks are still held.
        """
        if not self._held:
            return []
        if not self._builds_again():
            raise NothingCompilesError(self._message())
        self._is_settled = True
        return self.sift([])

    def forget(self, tasks: Collection[int]) -> None:
        """Drop these tasks, because their leases are lost."""
        self._held = [item for item in self._held if item.lease.task not in tasks]

    def _message(self) -> str:
        failure = _failure(self._held[0].result)
        assert failure is not None, "only failures are held"
        name = self._held[0].result.kernel.name
        detail = failure.detail.strip()
        if len(detail) > _DETAIL_CHARACTERS:
            detail = f"{detail[: _DETAIL_CHARACTERS // 2]} ... {detail[-_DETAIL_CHARACTERS // 2 :]}"
        memory = memory_limit_text()
        lines = [
            f"no kernel can be built here: all {len(self._held):,} that were tried have failed. "
            "None of these failures is recorded. `llmperf doctor` checks the compilers; mend the "
            "cause and run the same command again: it tries these kernels again",
            *([f"  {memory}"] if memory else []),
            f"  {name}: {failure.code}: {detail}",
        ]
        return "\n".join(lines)


def _was_built(result: TaskResult) -> bool:
    return result.build is not None and result.build.binary_sha256 is not None


def _is_doubtful(result: TaskResult) -> bool:
    failure = _failure(result)
    return failure is not None and failure.code in _DOUBTFUL


def _failure(result: TaskResult) -> Failure | None:
    """Return why the kernel failed as a whole; None if it has an outcome of a launch config."""
    first = result.samples[0]
    is_whole = len(result.samples) == 1 and not first.config.global_size
    return first.outcome if is_whole and isinstance(first.outcome, Failure) else None
