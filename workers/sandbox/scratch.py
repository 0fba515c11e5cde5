"""Scratch folders: one for each collector, named after its process, removed when that has ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from llmperf_common.ids import sha256_hex
from llmperf_common.ledger.holder import boot_clock_s, is_alive
from llmperf_common.ledger.protocol import Holder
from llmperf_common.store.files.filesystem import StoreError

FEWEST_FREE_BYTES = 8 * 2**20
"""Minimum bytes of free space: the binaries and compiler caches of a few kernels need as much."""
_PREFIX = "llmperf-scratch2-"
"""Prefix of the folders' names. It differs from the prefix of older releases, which would otherwise
remove these folders, because they put no host into the names."""


@contextlib.contextmanager
def scratch_folder(holder: Holder) -> Iterator[Path]:
    """Remove folders of dead holders, yield an empty one for ``holder``, remove it at the end.

    A fork of this process that leaves the block keeps the folder, which its parent still uses.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_PREFIX}*"):
        if _is_left_over(old, holder):
            shutil.rmtree(old, ignore_errors=True)
    name = f"{_PREFIX}{_world(holder)}-{holder.pid}-{holder.start_ticks}-"
    folder = Path(tempfile.mkdtemp(prefix=name, dir=root))
    creator_pid = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == creator_pid:
            shutil.rmtree(folder, ignore_errors=True)


def check_space(folder: Path) -> None:
    """Refuse a full disk: compilers would crash, and good kernels would get final failed rows.

    Raises:
        StoreError: The scratch folder has no free space to compile in, or is gone.
    """
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(
            f"{folder}: the scratch folder cannot be used ({error.strerror}): nothing committed is "
            "lost; set TMPDIR to a folder that no other program cleans up, and run the same "
            "command again"
        ) from None
    if free_bytes < FEWEST_FREE_BYTES:
        raise StoreError(
            f"no space left to compile in {folder} "
            f"({free_bytes:,} bytes free, {FEWEST_FREE_BYTES:,} needed): "
            "nothing committed is lost; "
            "free some space or set TMPDIR, and run the same command again"
        )


def _is_left_over(folder: Path, holder: Holder) -> bool:
    try:
        world, pid, start_ticks, _ = folder.name.removeprefix(_PREFIX).split("-", 3)
        owner = Holder(
            host=holder.host, boot_id=holder.boot_id, pid=int(pid), start_ticks=int(start_ticks)
        )
        found = folder.stat()
    except (ValueError, OSError):  # another program's folder, or one just removed
        return False
    host, boot = (_world(holder).split("x")[number] for number in (0, 1))
    if found.st_uid != os.getuid() or world.split("x")[0] != host:
        return False  # hosts may share this folder, and another host's process may be alive
    if world.split("x")[1:2] != [boot]:
        booted_s = time.time() - boot_clock_s()
        return found.st_mtime < booted_s  # newer: it belongs to another host of this name
    # Containers may share this folder. The pid of another container means nothing here, so its
    # folders stay.
    return world == _world(holder) and not is_alive(owner)


def _world(holder: Holder) -> str:
    """Return host, boot id and pid namespace as one text; within these a pid is unique."""
    host = sha256_hex(holder.host.encode())[:8]
    return f"{host}x{holder.boot_id[:8]}x{Path('/proc/self/ns/pid').stat().st_ino}"
