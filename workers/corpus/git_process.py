"""One running git command, with limits on its time and memory.

Owns the environment and the limits of git: a small repository can make git work without end, by
trees of trees or by deltas against a huge object. Git ends with the thread that started it, and so
with this process. ``git_directory.py`` chooses the commands.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from llmperf_common.awake_clock import POLL_S, awake_s
from workers.corpus.files import CorpusError
from workers.sandbox.child_environment import child_environment

_READ_BYTES = 1 << 16
_MESSAGE_CHARS = 500
_END_TIMEOUT_S = 10.0
_MAX_MEMORY_BYTES = 2**30
"""Memory limit of a git process in bytes; listing half a million files takes a tenth of this."""
_MAX_SILENCE_S = 300.0
"""Seconds without any output after which git is ended, even if it uses no processor: a disk or a
network file system may hang. A cold tree of a large repository takes seconds."""
_STARTER = Path(__file__).with_name("git_start.py")


class GitProcess:
    """A git command on one repository; a context manager that ends the command.

    Args:
        source: the git directory.
        arguments: the command, such as ``ls-tree``, and its arguments.
        doing: what the command does, for messages: "git needs too long to …".
        cpu_s: seconds of processor time that the command may use.

    Raises:
        CorpusError: ``git`` is not installed.
    """

    def __init__(self, source: Path, *arguments: str, doing: str, cpu_s: float) -> None:
        self._source = source
        self._doing = doing
        self._cpu_s = math.ceil(cpu_s)
        self._rest = b""
        # An explicit --git-dir needs no safe.directory. Objects that a partial clone lacks are not
        # fetched: the repository's configuration could name any program as the helper to fetch
        # them.
        environment = {
            **child_environment(),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_GRAFT_FILE": os.devnull,  # .git/info/grafts may be a link to a file of the user
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        git = shutil.which("git", path=environment.get("PATH"))
        if git is None:
            raise CorpusError(
                f"{source}: the git command is not installed: install it, or name an archive or "
                "a folder"
            )
        # The limit of memory leaves out mapped packs. It covers the memory to which a tree of 3 MB
        # may unpack.
        limits = (str(os.getpid()), str(self._cpu_s), str(_MAX_MEMORY_BYTES))
        # A file, because git would wait at a full pipe: a thousand broken packs give 300 KB.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        command = (git, "--no-pager", f"--git-dir={source.resolve()}", *arguments)
        self._process = subprocess.Popen(
            (sys.executable, "-I", "-S", str(_STARTER), *limits, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        with self._errors, self._process:
            if kind is not None:
                self._process.kill()
            self._end()

    @property
    def pid(self) -> int:
        """Git's process id."""
        return self._process.pid

    def allow(self, cpu_s: float) -> None:
        """Raise the limit on git's processor time to ``cpu_s`` seconds since its start.

        Call it only after git has answered: before that, the process may still set its own limit.
        """
        if math.ceil(cpu_s) <= self._cpu_s:
            return
        self._cpu_s = math.ceil(cpu_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_CPU)
            soft = self._cpu_s if hard == resource.RLIM_INFINITY else min(self._cpu_s, hard)
            resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (soft, hard))

    def send(self, line: bytes) -> bool:
        """Write a line to git; return False if git has ended.

        Raises:
            CorpusError: It has ended because it used too much time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._check_time()
            return False
        return True

    def piece(self) -> bytes:
        """Return git's next bytes, as many as there are; b"" at the end.

        Raises:
            CorpusError: Git used too much time, or gave no answer.
        """
        found, self._rest = self._rest, b""
        if found:
            return found
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not _is_readable(descriptor, _MAX_SILENCE_S):
            raise CorpusError(
                f"{self._source}: git has not answered for {_MAX_SILENCE_S:.0f} s when asked to "
                f"{self._doing}: check the disk, and the repository with `git fsck`"
            )
        found = os.read(descriptor, _READ_BYTES)
        if not found:
            self._check_time()
        return found

    def read(self, size: int) -> bytes:
        """Return git's next ``size`` bytes; fewer at the end."""
        pieces, left = [], size
        while left and (piece := self.piece()):
            pieces.append(piece[:left])
            self._rest = piece[left:]
            left -= len(pieces[-1])
        return b"".join(pieces)

    def line(self, most: int) -> bytes:
        """Return git's next line, or its first bytes if it is longer than about ``most`` bytes."""
        line = b""
        while b"\n" not in line and len(line) < most and (piece := self.piece()):
            line += piece
        line, end, self._rest = line.partition(b"\n")
        return line + end

    def complaint(self) -> str:
        """End git, and return what it has complained about; "" if it has succeeded."""
        self._end()
        if not self._process.returncode:
            return ""
        text = os.pread(self._errors.fileno(), _MESSAGE_CHARS * 4, 0).decode("utf-8", "replace")
        return " ".join(text.split())[:_MESSAGE_CHARS] or f"status {self._process.returncode}"

    def _check_time(self) -> None:
        """Raise CorpusError if git, which has closed its pipes, was ended by its time limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
        if self._process.returncode == -signal.SIGXCPU:
            raise CorpusError(
                f"{self._source}: not read, because git needs more than {self._cpu_s} s of processor "
                f"time to {self._doing}; the repository's trees or files may unpack without end: "
                "check out the part that you need into a folder, and name that folder"
            )

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()  # SIGPIPE ends a git that still writes
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _is_readable(descriptor: int, wait_s: float) -> bool:
    """Return whether a pipe has data, or is closed, within ``wait_s`` s of this process's work."""
    waiting = select.poll()  # unlike select.select, it takes descriptors above 1,023
    waiting.register(descriptor, select.POLLIN)
    deadline_s = awake_s() + wait_s
    while not waiting.poll(min(POLL_S, wait_s) * 1000):
        if awake_s() >= deadline_s:
            return False
    return True
