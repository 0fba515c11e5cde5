"""One process of a training on a cluster: trains in a thread and answers the driver meanwhile.

Owns the values that this process and the driver exchange. The values can be pickled; none is an
exception. ``ray.py`` makes a Ray actor of ``Worker``; this module does not import Ray.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from llmperf_common.errors import LlmperfError
from trainer.fit.checkpoint_folder import steps_in
from trainer.launch.here import train_here
from trainer.launch.job import TrainJob
from trainer.launch.rank_assignment import RankAssignment
from trainer.life.conductor import Stop
from trainer.life.summary import RunSummary
from trainer.run.folder import CHECKPOINTS_FOLDER
from trainer.run.folder_lock import is_held

_WAIT_FOR_FOLDER_S = 60.0
"""Seconds to wait for a folder that another process has locked. If a driver is killed, Ray ends its
processes some seconds later, and until then they keep the folder locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The failure of a process.

    Attributes:
        message: the error's message; for a bug the traceback.
        exit_code: exit code of an LlmperfError; None for other errors.
        is_echo: whether the error is only a consequence of another process's failure.
        error_number: errno of a foreseeable OSError (such as a full disk); None for other errors.
        path: file of that OSError, if known.
    """

    message: str
    exit_code: int | None = None
    is_echo: bool = False
    error_number: int | None = None
    path: str | None = None

    @property
    def is_foreseeable(self) -> bool:
        """Whether a restart would fail in the same way."""
        return self.exit_code is not None or self.error_number is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of a process, as it reports it to the driver.

    Attributes:
        lines: lines for the user since the last report.
        is_fitting: whether the fit is running; only then does a stop save the state.
        outcome: result or failure; None while the training runs.
    """

    lines: tuple[str, ...] = ()
    is_fitting: bool = False
    outcome: RunSummary | Failed | None = None


class Worker:
    """One process of a training."""

    def __init__(self) -> None:
        self._stop = Stop()
        self._lines: deque[str] = deque()
        self._outcome: RunSummary | Failed | None = None

    def free_port(self) -> int:
        """Return a port of this node that nothing listens on."""
        with socket.socket() as free:
            free.bind(("", 0))
            return int(free.getsockname()[1])

    def unseen(self, paths: Sequence[Path]) -> list[Path]:
        """Return those of ``paths`` that do not exist on this node."""
        return [path for path in paths if not path.exists()]

    def begin(self, job: TrainJob, assignment: RankAssignment) -> int:
        """Start the training in a thread; return the step of the newest checkpoint, 0 for none."""
        os.environ.update(
            RANK=str(assignment.rank),
            WORLD_SIZE=str(assignment.world_size),
            LOCAL_RANK=str(assignment.local_rank),
            MASTER_ADDR=assignment.address,
            MASTER_PORT=str(assignment.port),
        )
        interface = _interface_of(assignment.own_address)
        if interface is not None:
            # Otherwise gloo uses the address that the host name resolves to, often 127.0.1.1.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            if ipaddress.ip_address(assignment.own_address).is_loopback:
                # Otherwise NCCL uses another interface than loopback if there is one.
                os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        if assignment.rank == 0:
            logging.getLogger("trainer").addHandler(_Warnings(self._lines))
        thread = threading.Thread(
            target=self._work, args=(job, assignment.rank), name="llmperf-training", daemon=True
        )
        thread.start()
        return max(steps_in(job.out / CHECKPOINTS_FOLDER), default=0)

    def report(self) -> Report:
        """Return the state, with the lines since the last report."""
        outcome = self._outcome  # read before the lines, so that no line is lost
        lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
        return Report(lines=lines, is_fitting=self._stop.is_fitting, outcome=outcome)

    def stop(self) -> None:
        """Ask the fit to save its state after the current step and end."""
        self._stop.asked.set()

    def _work(self, job: TrainJob, rank: int) -> None:
        try:
            if rank == 0:
                self._wait_for_folder(job.out)
            self._outcome = train_here(job, self._lines.append, stop=self._stop)
        except LlmperfError as error:
            self._outcome = Failed(
                message=str(error), exit_code=int(error.exit_code), is_echo=error.is_echo
            )
        except Exception as error:  # noqa: BLE001  (the boundary of this process)
            self._outcome = _failed(error)

    def _wait_for_folder(self, out: Path) -> None:
        end_s = time.monotonic() + _WAIT_FOR_FOLDER_S
        if is_held(out):
            self._lines.append(
                f"{out}: another process still works in this folder: waiting up to "
                f"{_WAIT_FOR_FOLDER_S:.0f} s until that process ends"
            )
        while is_held(out) and time.monotonic() < end_s:
            time.sleep(0.2)


class _Warnings(logging.Handler):
    """Adds warnings to the lines for the user, who seldom sees a worker's stderr."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


_MACHINE_ERRORS = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG,
        errno.ENOSPC, errno.EDQUOT, errno.EIO,
    }
)  # fmt: skip
"""Error numbers that the user must correct; a restart would fail in the same way."""


def _failed(error: Exception) -> Failed:
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        path = error.filename2 or error.filename
        return Failed(
            message=error.strerror or str(error),
            error_number=error.errno,
            path=None if path is None else str(path),
        )
    return Failed(message=traceback.format_exc())


def _interface_of(address: str) -> str | None:
    """Return the network interface that has an IP address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return str(name)
    return None
