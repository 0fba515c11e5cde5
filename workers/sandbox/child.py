"""A killable child process and its channel, as its parent sees it.

Owns spawning, killing and what is left to read of a dead child. Children live in a session of their own, so
Ctrl-C reaches only the parent, and die with it (PR_SET_PDEATHSIG; ``child_main.py`` is their side).

When a child is killed for its time is decided by ``child_pool.py`` and, for launches, by
``workers/execution/run_lane.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from workers.sandbox.channel import (
    Channel,
    ChannelClosedError,
    FromChild,
    ToChild,
    UnreadableMessageError,
)
from workers.sandbox.child_environment import child_environment
from workers.sandbox.processors import ONE_THREAD

CACHE_FOLDER = "pocl"
"""Of a child's scratch folder: where PoCL keeps what it has compiled."""
_STDERR_TAIL_BYTES = 4096
_PROC = Path("/proc")
_PF_EXITING = 0x4
"""Bit of a process's flags in ``/proc/PID/stat``. The kernel sets it before it closes the files,
and with them the channel."""


class Child:
    """One child process; its owner must ``kill`` or ``close`` it.

    Args:
        module: run as ``python -m module``.
        argument: handed to the module's main as text.
        environment: added to what a child inherits of ours.
        scratch: a folder of the child's own for caches and its stderr.
    """

    def __init__(
        self, module: str, argument: str, *, environment: Mapping[str, str], scratch: Path
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.scratch = scratch
        self.last_heard_s = time.monotonic()
        self._was_ending = False
        self._complaint = ""
        self._stderr_path = scratch / "stderr.txt"
        ours, theirs = socket.socketpair()
        with theirs, self._stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid()), argument],
                env=child_environment(
                    ONE_THREAD, environment, {"POCL_CACHE_DIR": str(scratch / CACHE_FOLDER)}
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the child was reaped."""
        return self._process.returncode is not None

    @property
    def was_killed_by_another(self) -> bool:
        """Whether a SIGKILL ended it that was not ours: a user's, or the system's when memory ran out.

        Crashes have other signals. A child that hung up and lived, its memory damaged or an exception on its way, has died
        of ours. Ask after ``kill`` or ``close``.
        """
        by_sigkill = self._process.returncode == -signal.SIGKILL
        return by_sigkill and self._was_ending and not self._complaint

    def fileno(self) -> int:
        """The channel's descriptor, for ``selectors``."""
        return self._channel.socket.fileno()

    def send(self, message: ToChild) -> bool:
        """Send a message; False if the child is gone."""
        self.last_heard_s = time.monotonic()
        try:
            self._channel.send(message)
        except ChannelClosedError:
            return False
        return True

    def receive(self) -> tuple[list[FromChild], bool]:
        """Return the messages that have arrived and whether the child has hung up."""
        messages: list[FromChild] = []
        try:
            for message in self._channel.receive_available():
                assert isinstance(message, FromChild), "children send answers only"
                messages.append(message)
        except UnreadableMessageError as error:
            self._complaint = str(error)
            return messages, True
        except ChannelClosedError:
            return messages, True
        finally:
            if messages:
                self.last_heard_s = time.monotonic()
        return messages, False

    def close(self, timeout_s: float) -> bool:
        """Ask the child to end and wait for it; True if it ended by itself with exit code 0."""
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_WR)
        try:
            code = self._process.wait(timeout_s)
            self._was_ending = True
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return code == 0

    def kill(self) -> None:
        """End the child and whatever it started, and reap it."""
        self._was_ending = self._was_ending or _is_ending(self._process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.socket.close()

    def describe_end(self) -> str:
        """Say how the child ended, with the end of its stderr. Call after ``kill`` or hang-up."""
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        if self.was_killed_by_another:
            how += " that was not its parent's (memory may have run out)"
        elif code == -signal.SIGKILL and not self._was_ending:
            how += " of its parent, which it had hung up on"
        if self._complaint:
            how += f", after it had {self._complaint}"
        tail = self._stderr_tail()
        return f"child process ended with {how}" + (f"; stderr ends: {tail}" if tail else "")

    def _stderr_tail(self) -> str:
        try:
            with self._stderr_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _STDERR_TAIL_BYTES))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""


def _is_ending(pid: int) -> bool:
    """Whether a child that was not reaped is dead, or past the point where another signal would change how it ends."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False  # not known: then the signal is taken for ours
    fields = text.rpartition(")")[2].split()
    return fields[0] in ("Z", "X") or bool(int(fields[6]) & _PF_EXITING)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
