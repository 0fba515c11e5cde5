"""The driver of a training on a cluster: starts the processes, polls them, restarts them.

Owns the decision to restart or give up, and the lines for the user. At each start the processes
themselves read the state of the training from its folder. A ``Group`` (``ray.py``) places and polls
the processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from llmperf_common.config import ConfigError
from llmperf_common.errors import Exit, LlmperfError
from trainer.errors import BadInput, FitFailed, Interrupted
from trainer.interface import Progress
from trainer.launch.worker import Failed, Report
from trainer.life.summary import RunSummary

_POLL_S: Final = 0.2
_CAUSE_S: Final = 10.0
"""Seconds to wait after a first failure. When one process dies, the others fail, too, and Ray may
report the death that caused these failures a moment after them."""
_FIRST_S: Final = 3.0
"""Seconds to wait for rank 0's report of a failure. After that another process's report counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A dead process.

    Attributes:
        who: its rank and host.
        why: Ray's message about its death.
    """

    who: str
    why: str


class WorkerCrashed(RuntimeError):  # noqa: N818  (named for what happened)
    """A process of the training failed with a bug of LLMPerf; the message is the traceback."""


class GroupLost(Exception):  # noqa: N818  (named for what happened)
    """A process died while the group was being started."""


class Group(Protocol):
    """The placed processes of one start, by rank."""

    def begin(self) -> int:
        """Start the training on all processes; return the step of the newest checkpoint.

        Raises:
            BadInput: A node does not see a folder.
            GroupLost: A process died.
        """
        ...

    def poll(self) -> Sequence[Report | Gone | None]:
        """Return each process's new report, or None if it has not answered yet; do not wait."""
        ...

    def stop(self) -> None:
        """Ask all processes to save their state and end."""
        ...


StartGroup = Callable[[], AbstractContextManager[Group]]
"""Places the processes of a group; the context manager kills all of them at its end."""


@dataclass(frozen=True, slots=True)
class _Death:
    """The reason for a restart; ``traceback`` is set if a process raised an error (a bug)."""

    why: str
    traceback: str | None = None


def supervised(
    start: StartGroup,
    *,
    max_restarts: int,
    progress: Progress,
    asked: threading.Event,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> RunSummary:
    """Run a training to its end, with restarts of the group.

    Args:
        start: places a group.
        max_restarts: maximum number of restarts in a row without a new checkpoint.
        progress: receives the lines of rank 0, and one for each restart.
        asked: event; when it is set, the processes save their state and end.
        clock: returns monotonic seconds.
        sleep: waits for seconds.

    Raises:
        Interrupted: ``asked`` was set.
        BadInput: As in ``train``.
        ConfigError: As in ``train``.
        FitFailed: As in ``train``, or processes died too often.
        WorkerCrashed: A process failed with a bug of LLMPerf at each start.
    """
    num_failures, newest = 0, -1
    while True:
        try:
            with start() as group:
                step = group.begin()
                if step > newest:
                    num_failures, newest = 0, step
                if step:
                    progress(f"the newest checkpoint is of step {step}")
                ended = _Watch(group, progress, asked, clock, sleep).end()
        except GroupLost as error:
            ended = _Death(str(error))
        if isinstance(ended, RunSummary):
            return ended
        num_failures += 1
        if num_failures > max_restarts:
            raise _given_up(ended, num_failures)
        progress(
            f"{ended.why}: all processes are started again from the newest checkpoint "
            f"({num_failures} of {max_restarts} restarts without a new checkpoint)"
        )


@dataclass(slots=True)
class _Watch:
    """Polls one group until it ends."""

    group: Group
    progress: Progress
    asked: threading.Event
    clock: Callable[[], float]
    sleep: Callable[[float], object]
    _is_told: bool = field(default=False, init=False)
    _trouble_s: float | None = field(default=None, init=False)

    def end(self) -> RunSummary | _Death:
        """Return the result of the group, or the reason for a restart.

        Raises:
            Interrupted: ``asked`` was set; and the other errors of ``supervised``.
        """
        said: dict[int, Report | Gone] = {}
        while True:
            for rank, report in enumerate(self.group.poll()):
                if report is not None:
                    said[rank] = report
                    if rank == 0 and isinstance(report, Report):
                        for line in report.lines:
                            self.progress(line)
            ended = self._verdict(said)
            if ended is not None:
                return ended
            self._pass_on_stop(said.get(0))
            self.sleep(_POLL_S)

    def _verdict(self, said: dict[int, Report | Gone]) -> RunSummary | _Death | None:
        first = said.get(0)
        outcome = first.outcome if isinstance(first, Report) else None
        if isinstance(outcome, RunSummary):
            return outcome
        if isinstance(outcome, Failed) and outcome.is_foreseeable and not outcome.is_echo:
            raise _error_of(outcome)
        gone = next((one for one in said.values() if isinstance(one, Gone)), None)
        if gone is not None:
            return _Death(f"{gone.who} died ({gone.why})")
        failures = [
            one.outcome
            for one in said.values()
            if isinstance(one, Report) and isinstance(one.outcome, Failed)
        ]
        if not failures:
            return None
        now_s = self.clock()
        self._trouble_s = now_s if self._trouble_s is None else self._trouble_s
        known = [one for one in failures if one.is_foreseeable and not one.is_echo]
        if known and now_s - self._trouble_s >= _FIRST_S:
            raise _error_of(known[0])
        if now_s - self._trouble_s >= _CAUSE_S:
            failed = failures[0]
            crash = None if failed.is_foreseeable else failed.message
            return _Death(f"a process failed ({_last_line(failed.message)})", crash)
        return None

    def _pass_on_stop(self, first: Report | Gone | None) -> None:
        if not self.asked.is_set():
            return
        if not (isinstance(first, Report) and first.is_fitting):
            raise Interrupted(
                "interrupted outside the fit: what was prepared and fitted is kept; run the same "
                "command again to resume"
            )
        if not self._is_told:
            self._is_told = True
            self.progress("asked to end: the state is saved after the current step")
            self.group.stop()


def _given_up(death: _Death, num_starts: int) -> Exception:
    if death.traceback is not None:
        return WorkerCrashed(
            f"in a process of the training, {num_starts} times:\n{death.traceback}"
        )
    return FitFailed(
        f"{death.why}; {num_starts} starts in a row made no new checkpoint: check the node's "
        "memory and disk, or set checkpoint.every_steps lower; the same command resumes from the "
        "newest checkpoint"
    )


def _error_of(failed: Failed) -> Exception:
    """Return the process's error as an exception; its exit code determines the class."""
    if failed.error_number is not None:
        return OSError(failed.error_number, failed.message, failed.path)
    if failed.exit_code == Exit.USAGE:
        return ConfigError(failed.message)
    if failed.exit_code == Exit.INTERRUPTED:
        return Interrupted(failed.message)
    if failed.exit_code == Exit.BAD_INPUT:
        return BadInput(failed.message)
    error = LlmperfError(failed.message)
    error.exit_code = Exit(failed.exit_code or Exit.BAD_INPUT)
    return error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
