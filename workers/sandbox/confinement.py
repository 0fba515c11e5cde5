"""Confine a process in which a kernel runs: no writing outside of its own folder, no sockets.

On a CPU device a kernel is native code in the child, and its source can declare and call any
function of the C library. With Landlock (Linux 5.13 or newer) an unprivileged process can give up
rights, and the programs that it starts lack these rights, too. Reading is not confined, because
runtimes read from many places. Where Landlock is missing, only the filter of ``system_calls.py``
remains.

Owns the list of rights; ``system_calls.py`` owns the list of refused system calls. Constants and
structs are those of ``linux/landlock.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from workers.device.interface import DeviceRef
from workers.sandbox.memory_watch import end_above
from workers.sandbox.system_calls import refuse_system_calls

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, equal on all architectures."""
_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE = 1 << 1
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # remove and make entries of any kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_NEWER = ((2, _REFER), (3, _TRUNCATE))
"""Rights by the version of Landlock that knows them first."""
_TCP_VERSION, _TCP = 4, 0b11  # bind, connect
_SCOPE_VERSION, _SCOPES = 6, 0b11  # abstract sockets and signals to processes outside

_MOST_BYTES = 2 * 2**30
"""Maximum bytes of memory of a child whose buffers are small. In the tests it uses at most 0.4 GiB.
"""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def confine(ref: DeviceRef, *, has_small_buffers: bool = False) -> bool:
    """Confine this process, before it starts a thread, if ``ref`` is a device of the host's CPU.

    A GPU's kernels do not run in this process, and its driver writes to many places.

    Args:
        ref: the device.
        has_small_buffers: its buffers are smaller than a launch's, so its memory is limited, too.

    Returns:
        Whether the process is confined now, by Landlock and by a filter of system calls.
    """
    if not runs_in_host(ref):
        return False
    # ``ChildStarter`` has set the child's own scratch folder as its folder for temporary files.
    folders = [tempfile.gettempdir()]
    if cache := os.environ.get("POCL_CACHE_DIR"):
        folders.append(os.path.dirname(cache))  # this child's scratch folder (``child.py``)
    is_landlocked = confine_writing(folders)
    is_confined = refuse_system_calls() and is_landlocked
    if has_small_buffers:
        end_above(_MOST_BYTES)  # starts a thread, which inherits this thread's rights
    return is_confined


def runs_in_host(ref: DeviceRef) -> bool:
    """Return whether the kernels of a device run in the process that has opened it."""
    return ref.selector.startswith(("cpu", "pocl"))


def confine_writing(folders: Iterable[str | os.PathLike[str]]) -> bool:
    """Let this thread, and what it starts, write only below ``folders``, and use no TCP.

    Returns:
        False if this Linux has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    rights = _WRITE_FILE | _CHANGE_FOLDER
    for since, right in _NEWER:
        rights |= right if version >= since else 0
    ruleset = _Ruleset(
        handled_access_fs=rights,
        handled_access_net=_TCP if version >= _TCP_VERSION else 0,
        scoped=_SCOPES if version >= _SCOPE_VERSION else 0,
    )
    # Linux accepts a longer struct if the fields that it does not know are zero.
    rules = libc.syscall(
        _CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0
    )
    if rules < 0:
        return False
    try:
        for folder in folders:
            _allow(libc, rules, folder, rights)
        for device in _DEVICES:
            _allow(libc, rules, device, rights & (_WRITE_FILE | _TRUNCATE))
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str | os.PathLike[str], rights: int) -> None:
    with contextlib.suppress(OSError):  # a path that does not exist needs no right
        descriptor = os.open(Path(path), os.O_PATH | os.O_CLOEXEC)
        try:
            rule = _PathBeneath(allowed_access=rights, parent_fd=descriptor)
            libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(descriptor)
