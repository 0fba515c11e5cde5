"""A dataset of schema version 5 as its collector left it, stopped after two of three tasks.

The last code before version 6 made it on the replay device, from the kernels ``k0``, ``k1``, ``k2``
of ``tests.support.collecting.write_kernels``, with three configs each and ``OPTIONS``.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parents[2] / "fixtures" / "dataset_schema_5.tar.xz"
NUM_ROWS = 6
NUM_KERNELS = 3
OPTIONS = (
    "--samples-per-kernel", "3", "--set", "timing.spin_up_ms=0", "--set", "plan.strategies=['simple']",
    "--set", "store.commit_interval_s=0", "--set", "store.publish_interval_s=0.05",
    "--set", "timing.max_readings=6", "--set", "timing.min_readings=3",
)  # fmt: skip


def unpack(folder: Path) -> Path:
    """Put ``data`` and ``kernels`` into ``folder``; return the dataset's path."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "data"
