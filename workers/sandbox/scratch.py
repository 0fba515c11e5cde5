"""Scratch folders: one for each collector, named after its process, removed when that has ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmperf_common.ledger.holder import is_alive
from llmperf_common.ledger.protocol import Holder
from llmperf_common.store.files.filesystem import StoreError

FEWEST_FREE_BYTES = 8 * 2**20
"""Bytes of free space that the binaries and compiler caches of a few kernels need."""
_PREFIX = "llmperf-scratch-"


@contextlib.contextmanager
def scratch_folder(holder: Holder) -> Iterator[Path]:
    """Remove folders of dead holders, yield an empty one for ``holder``, remove it at the end."""
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_PREFIX}*"):
        if _is_left_over(old, holder):
            shutil.rmtree(old, ignore_errors=True)
    name = f"{_PREFIX}{_world(holder)}-{holder.pid}-{holder.start_ticks}-"
    folder = Path(tempfile.mkdtemp(prefix=name, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_space(folder: Path) -> None:
    """Refuse a full disk: it makes compilers crash as a bad kernel does, and such rows are final.

    Raises:
        StoreError: The scratch folder has no free space to compile in.
    """
    free_bytes = shutil.disk_usage(folder).free
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
        is_ours = folder.stat().st_uid == os.getuid()
    except (ValueError, OSError):  # another program's folder, or one just removed
        return False
    boot = world[: len(holder.boot_id[:8])]
    if boot != holder.boot_id[:8]:
        return is_ours
    # Pids of another container that shares this folder mean nothing here; only its boot id does.
    return is_ours and world == _world(holder) and not is_alive(owner)


def _world(holder: Holder) -> str:
    """Return the host's boot id and the pid namespace, in which a pid is unique."""
    return f"{holder.boot_id[:8]}x{Path('/proc/self/ns/pid').stat().st_ino}"
