"""Attaching again after a ledger was lost: only where the store can still be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from tests.simulation.work import PLAN_HASH
from workers.collect.joining import ledger_opener
from workers.config import PlanConfig, TimingConfig
from workers.plan.plan import Plan


class Disk(PosixFilesystem):
    """A folder whose file system takes no more writes from a moment on, as after an error of its disk."""

    is_read_only = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write it, or refuse as a read-only file system."""
        if self.is_read_only:
            why = os.strerror(errno.EROFS)
            raise StoreError(f"cannot write {self.describe(name)}: {why}")
        return super().put_if_absent(name, data)


def test_a_lost_ledger_is_not_opened_again_on_a_disk_that_takes_no_writes(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "data")
    plan = Plan(
        kernels=(), corpus_sha256=PLAN_HASH, device_classes=(), plan_config=PlanConfig(), timing_config=TimingConfig()
    )  # fmt: skip
    attach = ledger_opener(disk, SqliteLocation(tmp_path / "data" / "ledger"), plan, who="a test")
    attach().close()
    attach().close()  # a disk that is sound: the same ledger again
    disk.is_read_only = True
    with pytest.raises(StoreError, match="Read-only file system"):
        attach()
