"""A killable child process and its channel, as its parent sees it.

Owns starting and killing a child, and reading how it ended. Each child has its own session, so
Ctrl-C reaches only the parent. The child dies with its parent (PR_SET_PDEATHSIG,
``parent_tie.py``).

Does not own when a child must be killed: ``child_pool.py`` decides that, and
``workers/execution/run_lane.py`` for launches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from llmperf_common.awake_clock import awake_s
from llmperf_common.installation import HASH_VARIABLE, loaded_installation
from workers.sandbox.channel import Channel, ChannelClosedError, UnreadableMessageError
from workers.sandbox.child_environment import PYTHON, child_environment
from workers.sandbox.messages import FromChild, ToChild
from workers.sandbox.processors import ONE_THREAD

CACHE_FOLDER = "pocl"
"""Folder in a child's scratch folder where PoCL keeps compiled code."""
_STDERR_TAIL_BYTES = 4096
_PROC = Path("/proc")
_PF_EXITING = 0x4
"""Bit of the flags in ``/proc/PID/stat``. Linux sets the bit before it closes a dying process's
files, including the channel."""


class Child:
    """One child process. Its owner must call ``kill`` or ``close``.

    Args:
        module: run as ``python -m module``.
        argument: passed to the module's main as text.
        environment: variables in addition to the inherited ones.
        scratch: a folder for this child's caches and stderr.
    """

    def __init__(
        self, module: str, argument: str, *, environment: Mapping[str, str], scratch: Path
    ) -> None:
        scratch.mkdir(exist_ok=True)  # a parent folder that has vanished must not be created again
        self.scratch = scratch
        self.last_heard_s = awake_s()
        self._was_ending = False
        self._complaint = ""
        self._stderr_path = scratch / "stderr.txt"
        ours, theirs = socket.socketpair()
        with theirs, self._stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*PYTHON, "-m", module, str(theirs.fileno()), str(os.getpid()), argument],
                env=child_environment(
                    ONE_THREAD,
                    environment,
                    {
                        "POCL_CACHE_DIR": str(scratch / CACHE_FOLDER),
                        "PYOPENCL_NO_CACHE": "1",
                        HASH_VARIABLE: loaded_installation().sha256,
                    },
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
        """Whether the child has ended and its exit code has been read."""
        return self._process.returncode is not None

    @property
    def was_killed_by_another(self) -> bool:
        """Whether a SIGKILL that we did not send ended the child (sent by a user, or by Linux).

        Linux sends one if memory runs out. A crash ends with another signal. A child that closes
        its channel but does not end (its memory may be damaged) is killed by this process. Valid
        after ``kill`` or ``close``.
        """
        by_sigkill = self._process.returncode == -signal.SIGKILL
        return by_sigkill and self._was_ending and not self._complaint

    def fileno(self) -> int:
        """The channel's descriptor, for ``selectors``."""
        return self._channel.socket.fileno()

    def send(self, message: ToChild) -> bool:
        """Send a message; return False if the child is gone."""
        self.last_heard_s = awake_s()
        try:
            self._channel.send(message)
        except ChannelClosedError:
            return False
        return True

    def receive(self) -> tuple[list[FromChild], bool]:
        """Return the messages that have arrived, and whether the child has closed its channel."""
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
                self.last_heard_s = awake_s()
        return messages, False

    def close(self, timeout_s: float) -> bool:
        """Ask the child to end and wait for it; return True if it ended by itself with code 0."""
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
        """Kill the child and all processes that it has started, and wait for its end."""
        self.begin_kill()
        self._process.wait()
        self._channel.socket.close()

    def begin_kill(self) -> None:
        """Kill the child and all processes that it has started; ``has_gone`` tells if it ended."""
        self._was_ending = self._was_ending or _is_ending(self._process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def has_gone(self, wait_s: float = 0.0) -> bool:
        """Return whether the child has ended after ``begin_kill``; wait at most ``wait_s`` s."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        self._channel.socket.close()
        return True

    def describe_end(self) -> str:
        """Return how the child ended, with the end of its stderr; call it after ``kill``."""
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        if self.was_killed_by_another:
            how += " that was not its parent's (memory may have run out)"
        elif code == -signal.SIGKILL and not self._was_ending:
            how += " of its parent, to which it no longer answered"
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
    """Return whether a child, whose exit code is not read yet, has ended or is already ending."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False  # unknown, so the coming SIGKILL counts as ours
    fields = text.rpartition(")")[2].split()
    return fields[0] in ("Z", "X") or bool(int(fields[6]) & _PF_EXITING)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
