"""Scratch folders that do not pile up: one a collector, named by its process, swept when that is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmperf_common.ledger.holder import is_alive
from llmperf_common.ledger.protocol import Holder

_PREFIX = "llmperf-scratch-"


@contextlib.contextmanager
def scratch_folder(holder: Holder) -> Iterator[Path]:
    """Yield an empty folder for ``holder``; it is removed at the end, those of dead collectors at the start."""
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_PREFIX}*"):
        if _is_left_over(old, holder):
            shutil.rmtree(old, ignore_errors=True)
    name = f"{_PREFIX}{holder.boot_id[:8]}-{holder.pid}-{holder.start_ticks}-"
    folder = Path(tempfile.mkdtemp(prefix=name, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path, holder: Holder) -> bool:
    try:
        boot, pid, start_ticks, _ = folder.name.removeprefix(_PREFIX).split("-", 3)
        owner = Holder(
            host=holder.host, boot_id=holder.boot_id, pid=int(pid), start_ticks=int(start_ticks)
        )
    except ValueError:
        return False
    if folder.stat().st_uid != os.getuid():
        return False
    return boot != holder.boot_id[:8] or not is_alive(owner)
