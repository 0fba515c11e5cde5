"""End the driver with a message of LLMPerf if the head of its Ray cluster is gone.

Ray itself ends a driver whose head does not answer for 60 s, from a thread of its own and with exit
code 1, and does not say what happened to the run. If the driver's own raylet dies, Ray does the same
some 15 s later, or lets the driver wait without end. Nothing is lost with the driver, because actors
commit their results themselves. The next start of the command measures tasks again whose results
were not committed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil

_logger = logging.getLogger(__name__)

_POLL_S = 1.0
_FEWEST_SILENT = 4
"""Minimum number of failed attempts after which the head counts as gone. Time alone does not
suffice: after a pause of this process the head would seem to have been silent for long."""
OWN_HEAD_S = 5.0
"""Seconds without an answer after which a head that this process started counts as gone. Such a
head is never started again, so there is no reason to wait longer."""
_RAYS_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RAYS_DEFAULT_S = 60.0
_SHARE_OF_RAYS = 0.75
_OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of this process, which cannot open another socket; they say nothing about the head."""
_RAYS_PROCESSES = ("gcs_server", "raylet", "ray::")
_RAYS_FILES = ("/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/")
_EXIT_CODE = 3
_RESUME = "what its actors have committed is in the dataset; start the command again to resume"


def joined_head_s() -> float:
    """Return the seconds without an answer after which the head of a user's cluster counts as gone.

    The result is a share of Ray's own limit, which users raise if their head may be restarted.
    """
    try:
        limit_s = float(os.environ.get(_RAYS_LIMIT, ""))
    except ValueError:
        limit_s = _RAYS_DEFAULT_S
    return _SHARE_OF_RAYS * limit_s


@contextlib.contextmanager
def head_watched(
    address: str,
    *,
    limit_s: float,
    raylet: psutil.Process | None = None,
    lost: Callable[[str], object] | None = None,
) -> Iterator[None]:
    """Watch the head of a cluster from a thread during the ``with`` block.

    Args:
        address: host and port of the head's global control store.
        limit_s: seconds without an answer after which the head counts as gone.
        raylet: the raylet that this process has started, which counts as the head; None: it joined
            a cluster.
        lost: called once with a line of text if the head is gone. The default logs the text, kills
            the Ray processes that this process has started, and ends this process with exit code 3.
    """
    end = threading.Event()
    watch = threading.Thread(
        target=_watch,
        args=(address, limit_s, raylet, lost or _end_here, end),
        name="head",
        daemon=True,
    )
    watch.start()
    try:
        yield
    finally:
        end.set()


def _watch(
    address: str,
    limit_s: float,
    raylet: psutil.Process | None,
    lost: Callable[[str], object],
    end: threading.Event,
) -> None:
    num_silent, silent_since_s = 0, 0.0
    while not end.wait(_POLL_S):
        if raylet is not None and has_ended(raylet):
            lost(f"the head of the Ray cluster is gone: its raylet has ended: {_RESUME}")
            return
        if _answers(address):
            num_silent = 0
            continue
        now_s = time.monotonic()
        silent_since_s = silent_since_s if num_silent else now_s
        num_silent += 1
        if num_silent >= _FEWEST_SILENT and now_s - silent_since_s >= limit_s - _POLL_S:
            lost(
                f"the head of the Ray cluster ({address}) has not answered for {limit_s:g} s: "
                f"{_RESUME}"
            )
            return


def own_raylet() -> psutil.Process | None:
    """Return the raylet among the children of this process; None if there is none."""
    ours = psutil.Process().children(recursive=True)
    return next((one for one in ours if _name_of(one) == "raylet"), None)


def _name_of(process: psutil.Process) -> str:
    """Return the name of a process; "" if it has ended or cannot be looked at."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is certainly gone; False if it cannot be looked at."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_POLL_S):
            return True
    except OSError as error:
        return error.errno in _OWN_FAULTS


def _end_here(message: str) -> None:
    """End this process at once: an orderly end would wait for the head."""
    _logger.error("%s", message)
    ours = psutil.Process().children(recursive=True)
    rays = [one for one in ours if _is_rays(one)]
    for process in rays:
        with contextlib.suppress(psutil.Error):
            rays_own = process.children(recursive=True)
            process.kill()
            for one in rays_own:
                one.kill()
    logging.shutdown()
    os._exit(_EXIT_CODE)


def _is_rays(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
        return process.name().startswith(_RAYS_PROCESSES) or any(
            one in words for one in _RAYS_FILES
        )
    except psutil.Error:
        return False
