"""The process that owns the device context, and a warm spare that takes over when it dies.

Owns starting, promoting and ending run children, and when a device counts as lost. Does not know what they
are asked to run: ``running.py``.
"""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable

from llmperf_common.records import Device
from workers.channel import ChildCrashed, ChildReady, PeaksJob
from workers.child import Child

START_TIMEOUT_S = 120.0
_EXIT_TIMEOUT_S = 5.0
"""The loop waits for an exiting child: longer would hold up commits."""
_MAX_FAILED_STARTS = 3


class DeviceLostError(Exception):
    """The device cannot be opened any more; the message says how the last child ended."""


class RunChildren:
    """At most two run children: the current one and its spare.

    Args:
        start_child: starts a run child whose scratch folder has the given name.
        keep_spare: have the next child ready before it is needed.
    """

    def __init__(self, start_child: Callable[[str], Child], *, keep_spare: bool) -> None:
        self._start_child = start_child
        self._keep_spare = keep_spare
        self._names = itertools.count()
        self._spare: Child | None = None
        self._spare_is_ready = False
        self._failed_starts = 0
        self.current: Child | None = None
        """The child that runs what there is to run."""
        self.is_ready = False
        """Whether the current child has opened its device."""

    def all(self) -> list[Child]:
        """The children to watch for messages."""
        return [child for child in (self.current, self._spare) if child is not None]

    def ensure(self) -> bool:
        """Have a current child: the spare or a new one; returns whether it is ready for a job."""
        if self.current is None:
            if self._spare is not None:
                self.current, self.is_ready = self._spare, self._spare_is_ready
                self._spare = None
            else:
                self.current, self.is_ready = self._start(), False
            if self.is_ready:
                self.start_spare()
        return self.is_ready

    def note_ready(self) -> None:
        """The current child has opened its device."""
        self.is_ready = True
        self._failed_starts = 0
        self.start_spare()

    def start_spare(self) -> None:
        """Have a spare under way, where one is kept."""
        if self._keep_spare and self._spare is None:
            self._spare = self._start()
            self._spare_is_ready = False

    def hear_spare(self, child: Child) -> bool:
        """Take in what ``child`` has sent if it is the spare; returns whether it was."""
        if child is not self._spare:
            return False
        messages, hung_up = child.receive()
        self._spare_is_ready |= any(isinstance(message, ChildReady) for message in messages)
        if hung_up or any(isinstance(message, ChildCrashed) for message in messages):
            child.kill()
            self._spare = None
        return True

    def drop(self) -> None:
        """Kill the current child."""
        if self.current is not None:
            self.current.kill()
            self.current = None
        self.is_ready = False

    def drop_failed_start(self, report: str) -> None:
        """Kill the current child, which ended (or was silent) before it had opened its device.

        Raises:
            DeviceLostError: It was one too many in a row; ``report`` (or how it ended) is the message.
        """
        child = self.current
        assert child is not None, "no child to drop"
        self.drop()
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise DeviceLostError(_lost(report or child.describe_end()))

    def end_current(self) -> str | None:
        """Let the current child exit; None if it went well, else how it ended."""
        child = self.current
        assert child is not None, "no child to end"
        clean = child.close(_EXIT_TIMEOUT_S)
        self.current, self.is_ready = None, False
        return None if clean else child.describe_end()

    def close(self) -> None:
        """Kill every child."""
        self.drop()
        if self._spare is not None:
            self._spare.kill()
            self._spare = None

    def open_device(self) -> Device:
        """Wait for a fresh current child to open its device, trying again where that fails.

        Raises:
            DeviceLostError: The child ends or gives no answer, time and again.
        """
        return self._until_ready(self.ensure)

    def measure_peaks(self) -> Device:
        """Have the device's peaks measured by the current child. Raises DeviceLostError."""

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
        while time.monotonic() - child.last_heard_s < START_TIMEOUT_S:
            if not select.select([child], [], [], 1.0)[0]:
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

    def _start(self) -> Child:
        return self._start_child(f"run-{next(self._names)}")


def _lost(why: str) -> str:
    return f"the device cannot be opened ({why}): see `llmperf doctor`, and whether another process fills it"
