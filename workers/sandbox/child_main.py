"""A child's first steps: tie its life to the parent's, limit its files, check its code, and serve.

Owns the process boundary of every child, the one place that catches every exception. The child dies
with its parent, and Linux kills it first if memory runs out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from llmperf_common.installation import check_as_parent
from workers.sandbox.address_space import lower_limit
from workers.sandbox.channel import Channel, ChannelClosedError
from workers.sandbox.messages import ChildCrashed

_PR_SET_PDEATHSIG = 1
_MAX_FILE_BYTES = 512 * 2**20  # largest size of any file that a child writes


def serve(main: Callable[[Channel, str], None]) -> None:
    """Run ``main(channel, argument)`` as a child process that ``workers.sandbox.child`` started.

    Returns when the parent closes the channel; reports any exception and exits with code 1.
    """
    descriptor, parent_pid, argument = sys.argv[1:]
    die_with_parent(int(parent_pid))
    die_before_parent()
    # A kernel may write into any file descriptor, so core dumps and logs must stay small.
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        check_as_parent()
        main(channel, argument)
    except ChannelClosedError:
        return
    except Exception as error:  # noqa: BLE001  (the process boundary: everything becomes a report)
        summary = f"{type(error).__name__}: {error}"
        channel.send(ChildCrashed(traceback=traceback.format_exc(), summary=summary))
        sys.exit(1)


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to SIGKILL this process when its parent ends; exit if that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def die_before_parent() -> None:
    """Ask Linux to kill this process first if memory runs out, because its code is a likely cause.

    The collector must survive. It records a failed row if a child dies like this twice.
    """
    with contextlib.suppress(OSError):  # no /proc, or a sandbox forbids it: nothing changes
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
