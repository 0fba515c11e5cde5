"""A child's first steps: die with the parent (and before it, if memory runs out), bound what it may write, serve.

Owns the process boundary of every child: the one place that catches whatever is thrown.
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

from workers.sandbox.address_space import lower_limit
from workers.sandbox.channel import Channel, ChannelClosedError, ChildCrashed

_PR_SET_PDEATHSIG = 1
_MAX_FILE_BYTES = 512 * 2**20


def serve(main: Callable[[Channel, str], None]) -> None:
    """Run ``main(channel, argument)`` as a child process started by ``workers.sandbox.child.Child``.

    Ends the process when the parent closes the channel; reports an exception of ours and exits with 1.
    """
    descriptor, parent_pid, argument = sys.argv[1:]
    die_with_parent(int(parent_pid))
    die_before_parent()
    # A kernel may write its way into any file descriptor; core dumps and logs stay small.
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        main(channel, argument)
    except ChannelClosedError:
        return
    except Exception as error:  # noqa: BLE001  (the process boundary: everything becomes a report)
        summary = f"{type(error).__name__}: {error}"
        channel.send(ChildCrashed(traceback=traceback.format_exc(), summary=summary))
        sys.exit(1)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent ends; exit if that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def die_before_parent() -> None:
    """Ask the kernel to take this process first when memory runs out: a compiler or a kernel has eaten it.

    The collector would be an innocent victim; the child's death, the second time, is a coded row.
    """
    with contextlib.suppress(OSError):  # no /proc, or a sandbox: then it is as it was
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
