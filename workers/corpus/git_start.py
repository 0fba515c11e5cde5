"""Start git with limits, as a process that ends with its parent.

Run as a file by ``git_process.py``, with ``python -I -S``. Linux keeps limits and the signal of the
parent's death when a process becomes another program, so this process becomes git. A function that
``subprocess`` calls between fork and exec could do the same, but is not safe beside other threads.
Imports only modules of the standard library that load fast: each corpus waits for two starts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_MAX_FILE_BYTES = 2**20
"""Limit of the file of error messages, the only one that git writes; later messages are lost."""


def _limit(kind: int, most: int, hard_too: bool) -> None:
    """Lower a limit; never raise it. A soft limit can be raised again, a hard limit cannot."""
    limits = resource.getrlimit(kind)
    soft, hard = (most if now == resource.RLIM_INFINITY else min(most, now) for now in limits)
    resource.setrlimit(kind, (soft, hard if hard_too else limits[1]))


def main() -> None:
    """Become git: ``sys.argv`` has the parent's pid, seconds, bytes, and the command line."""
    parent_pid, cpu_s, num_bytes = (int(one) for one in sys.argv[1:4])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # too many messages must not end git
    _limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES, hard_too=True)
    _limit(resource.RLIMIT_CORE, 0, hard_too=True)
    _limit(resource.RLIMIT_DATA, num_bytes, hard_too=True)
    _limit(resource.RLIMIT_CPU, cpu_s, hard_too=False)
    os.execve(sys.argv[4], sys.argv[4:], os.environ)  # noqa: S606  (git_process.py chooses the command)


if __name__ == "__main__":
    main()
