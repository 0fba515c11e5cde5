"""The process that owns a device context: its start, its restarts, and when its device is lost.

Does not own which jobs the process gets; ``run_lane.py`` does.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable
from dataclasses import dataclass

from llmperf_common.awake_clock import POLL_S, awake_s
from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.records import Device
from workers.device.nvidia.nvml import problems_of
from workers.sandbox.address_space import memory_limit_text
from workers.sandbox.child import Child
from workers.sandbox.messages import ChildCrashed, ChildReady, PeaksJob

START_TIMEOUT_S = 120.0
_EXIT_TIMEOUT_S = 5.0
"""Seconds that the loop waits for an exiting child; a longer wait would delay commits."""
_MAX_FAILED_STARTS = 3
MOST_KILLS = 30
"""Number of idle children killed in a row by other processes, after which no more are started."""
ENDING_POLL_S = 0.01
"""Seconds to wait right after a child was killed, and then between two checks whether it has ended.
A GPU's driver takes at least 0.1 s to end a context, and up to 2 s on a host with busy cards."""


class DeviceLostError(LlmperfError):
    """The device cannot be opened any more; the message says how the last child ended."""

    exit_code = Exit.NO_DEVICE


class ChildStartError(DeviceLostError):
    """A child could not open the device at any of its starts; other children may have it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingChild:
    """A killed child that may still hold the device; ``then`` is what its lane does afterwards."""

    child: Child
    device: Device
    then: Callable[[], None]

    def has_ended(self) -> bool:
        """Return whether the child has ended; do not wait for its end.

        Raises:
            DeviceLostError: The child has ended, and the card is not healthy. Then another device
                times all configs of the task in hand, including those that were timed here.
        """
        if not self.child.has_gone():
            return False
        problems = problems_of(self.device)
        if problems:
            what = f"{self.device.name} is not healthy after a process on it died"
            raise DeviceLostError(f"{what}: {'; '.join(problems)}")
        return True


class RunChild:
    """One run child at a time, with restarts.

    Args:
        start_child: starts a run child whose scratch folder has the given name.
        name: prefix of the scratch folders' names.
    """

    def __init__(self, start_child: Callable[[str], Child], *, name: str) -> None:
        self._start_child = start_child
        self._names = (f"{name}-{number}" for number in itertools.count())
        self._failed_starts = 0
        self.current: Child | None = None
        """The child that gets the jobs."""
        self.is_ready = False
        """Whether the current child has opened its device."""

    def ensure(self) -> bool:
        """Start a child if there is none; return whether the child is ready for a job."""
        if self.current is None:
            self.current, self.is_ready = self._start_child(next(self._names)), False
        return self.is_ready

    def note_ready(self) -> None:
        """Note that the current child has opened its device."""
        self.is_ready = True
        self._failed_starts = 0

    def drop(self) -> None:
        """Kill the current child."""
        if self.current is not None:
            self.current.kill()
            self.current = None
        self.is_ready = False

    def begin_drop(self) -> Child:
        """Kill the current child and return it; do not wait longer than a moment for its end."""
        child = self.current
        assert child is not None, "no child to drop"
        child.begin_kill()
        child.has_gone(ENDING_POLL_S)
        self.current, self.is_ready = None, False
        return child

    def drop_failed_start(self, report: str) -> None:
        """Kill the current child, which ended or was silent before it had opened its device.

        Raises:
            ChildStartError: Too many starts in a row have failed. The message contains ``report``;
                if ``report`` is empty, it says how the last child ended.
        """
        child = self.current
        assert child is not None, "no child to drop"
        self.drop()
        self._failed_starts += 1
        most = MOST_KILLS if child.was_killed_by_another else _MAX_FAILED_STARTS
        if self._failed_starts >= most:
            raise ChildStartError(_lost(report or child.describe_end()))

    def end_current(self) -> str | None:
        """Let the current child exit; return how it failed.

        Returns None if the child ended well or another process killed it.
        """
        child = self.current
        assert child is not None, "no child to end"
        clean = child.close(_EXIT_TIMEOUT_S)
        self.current, self.is_ready = None, False
        return None if clean or child.was_killed_by_another else child.describe_end()

    def open_device(self) -> Device:
        """Wait for the current child to open its device; start new ones if it fails.

        Raises:
            DeviceLostError: Every attempt failed.
        """
        return self._until_ready(self.ensure)

    def measure_peaks(self) -> Device:
        """Return the device with the peaks that the current child measures.

        Raises:
            DeviceLostError: Every attempt failed.
        """

        def ask() -> None:
            if not self.ensure():
                self._await_ready()
            assert self.current is not None, "ensure() leaves a child"
            self.current.send(PeaksJob())

        return self._until_ready(ask)

    def _until_ready(self, prepare: Callable[[], object]) -> Device:
        for attempts_left in reversed(range(_MAX_FAILED_STARTS)):
            try:
                prepare()
                return self._await_ready()
            except DeviceLostError:
                if not attempts_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _await_ready(self) -> Device:
        child = self.current
        assert child is not None, "no child to wait for"
        while awake_s() - child.last_heard_s < START_TIMEOUT_S:
            if not select.select([child], [], [], POLL_S)[0]:
                continue
            messages, hung_up = child.receive()
            for message in messages:
                if isinstance(message, ChildReady):
                    self.is_ready = True
                    return message.device
                if isinstance(message, ChildCrashed):
                    self.drop()
                    raise DeviceLostError(_lost(message.summary))
            if hung_up:
                self.drop()
                raise DeviceLostError(_lost(child.describe_end()))
        self.drop()
        raise DeviceLostError(_lost(f"no answer from the device within {START_TIMEOUT_S:g} s"))


def start_failure(name: str, why: str) -> str:
    """Return the message for the case that children other than the timing child cannot start."""
    mend = memory_limit_text() or "see `llmperf doctor`, and check how much memory is free"
    lines = why.strip().splitlines() or ["it ended without a message"]
    return f"processes that {name} kernels cannot be started ({lines[-1].strip()}): {mend}"


def _lost(why: str) -> str:
    mend = (
        memory_limit_text()
        or "see `llmperf doctor`, and check whether another process has filled its memory"
    )
    return f"the device cannot be opened ({why}): {mend}"
