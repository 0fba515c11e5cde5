"""Epochs: numbers that only grow, one for each ledger that was ever built for a dataset.

Owns ``epochs/000003``. A worker of an older epoch can neither commit nor publish.
"""

from __future__ import annotations

import json
import re

from llmperf_common.store.files.filesystem import Filesystem

EPOCHS_FOLDER = "epochs"
_NAME = re.compile(r"\d{6,}")


def latest_epoch(fs: Filesystem) -> int:
    """Return the highest epoch taken, 0 before the first."""
    return max((int(name) for name in fs.names(EPOCHS_FOLDER) if _NAME.fullmatch(name)), default=0)


def take_next_epoch(fs: Filesystem, *, who: str) -> int:
    """Take the next epoch for ``who`` alone."""
    while True:
        epoch = latest_epoch(fs) + 1
        record = json.dumps({"epoch": epoch, "taken_by": who}) + "\n"
        if fs.put_if_absent(f"{EPOCHS_FOLDER}/{epoch:06d}", record.encode()):
            return epoch
