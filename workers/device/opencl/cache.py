"""Settings of PoCL's compiler: a private cache for each process, one build for all local sizes.

PoCL keeps compiled kernels in one folder per user. A process that is killed during a build leaves
broken files there, and a shared folder makes the second run of a benchmark differ from the first.
So each process gets its own folder, and the next process removes the folders of dead processes.
Must run before OpenCL is loaded, because PoCL reads the variable once.
"""

from __future__ import annotations

import atexit
import functools
import os
import platform
import shutil
import tempfile
from pathlib import Path

from llmperf_common.ids import sha256_hex

_PREFIX = "llmperf-pocl-"
_SPECIALISATION = "POCL_WORK_GROUP_SPECIALIZATION"


def use_private_cache() -> None:
    """Give PoCL a folder that is removed when this process exits; disable pyopencl's own cache.

    A ``POCL_CACHE_DIR`` that the user has set stays; one that the parent process has set for itself
    is replaced.
    """
    os.environ["PYOPENCL_NO_CACHE"] = "1"
    given = Path(os.environ.get("POCL_CACHE_DIR", ""))
    if given.name and (not given.name.startswith(_PREFIX) or given.name.startswith(_own_prefix())):
        return
    root = Path(tempfile.gettempdir())
    remove_dead_caches(root)
    os.environ["POCL_CACHE_DIR"] = tempfile.mkdtemp(prefix=_own_prefix(), dir=root)
    atexit.register(remove_private_cache)


def compile_for_any_local_size() -> None:
    """Let PoCL compile a kernel once, in place of once for each local size.

    Only for processes that time nothing: code for a known local size is faster. A value that the
    user has given stays.
    """
    os.environ.setdefault(_SPECIALISATION, "0")


def remove_private_cache() -> None:
    """Remove this process's folder, if ``use_private_cache`` made it."""
    folder = Path(os.environ.get("POCL_CACHE_DIR", ""))
    if folder.name.startswith(_own_prefix()):
        shutil.rmtree(folder, ignore_errors=True)


def remove_dead_caches(root: Path) -> None:
    """Remove the folders that processes which have ended since the boot have left behind."""
    for folder in root.glob(f"{_PREFIX}{_world()}-*"):
        pid = folder.name.removeprefix(f"{_PREFIX}{_world()}-").split("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _own_prefix() -> str:
    return f"{_PREFIX}{_world()}-{os.getpid()}-"


def _world() -> str:
    """Return the host, its boot and its pid namespace: hosts and containers may share /tmp."""
    host = sha256_hex(platform.node().encode())[:8]
    return f"{host}x{_boot_id()}x{Path('/proc/self/ns/pid').stat().st_ino}"


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return "none"
