"""Epochs: numbers that only grow, one for each ledger that was ever built for a dataset.

Owns ``epochs/000003``. A worker of an older epoch can neither commit nor publish.
"""

from __future__ import annotations

import json
import re

from llmperf_common.store.files.filesystem import Filesystem, StoreError

EPOCHS_FOLDER = "epochs"
MAX_EPOCH = 10**12 - 1
"""Highest epoch that is accepted. No run builds so many ledgers, so a file or manifest with a
higher epoch was not written by LLMPerf."""
_NAME = re.compile(r"[0-9]{6,12}")


def latest_epoch(fs: Filesystem) -> int:
    """Return the highest epoch taken; 0 if no epoch was taken."""
    return max((int(name) for name in fs.names(EPOCHS_FOLDER) if _NAME.fullmatch(name)), default=0)


def strays(fs: Filesystem) -> list[str]:
    """Return what lies in the folder of the epochs and is no epoch, without hidden files."""
    files = (name for name in fs.names(EPOCHS_FOLDER) if not _NAME.fullmatch(name))
    names = sorted((*files, *fs.folders(EPOCHS_FOLDER)))
    return [f"{EPOCHS_FOLDER}/{name}" for name in names if not name.startswith(".")]


def check_epoch(fs: Filesystem, epoch: int) -> None:
    """Raise StoreError if no epoch is left after ``epoch``, which the dataset has."""
    if epoch >= MAX_EPOCH:
        raise StoreError(
            f"{fs.describe()} has epoch {str(epoch)[:40]} in its manifest or "
            f"{EPOCHS_FOLDER}/, a number that no run reaches: copy the dataset from its "
            "source again"
        )


def take_next_epoch(fs: Filesystem, *, who: str, after: int = 0) -> int:
    """Take the next epoch above ``after``, the current manifest's epoch, for ``who`` alone.

    Raises:
        StoreError: All epochs up to ``MAX_EPOCH`` are taken.
    """
    epoch = after
    while True:
        # The name of an epoch may be taken by something that is not listed, such as a folder: try
        # the next epoch.
        epoch = max(latest_epoch(fs), epoch) + 1
        check_epoch(fs, epoch - 1)
        record = json.dumps({"epoch": epoch, "taken_by": who}) + "\n"
        if fs.put_if_absent(f"{EPOCHS_FOLDER}/{epoch:06d}", record.encode()):
            return epoch
