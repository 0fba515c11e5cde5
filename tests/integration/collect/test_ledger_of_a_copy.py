"""A run is complete if its folder holds every task, not only if its ledger says so."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from llmperf.exits import Exit
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import (
    COMMIT_AT_ONCE,
    SAMPLES_A_KERNEL,
    Collect,
    events,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf

_NUM_KERNELS = 12


def test_tasks_that_only_the_ledger_knows_end_the_run_with_an_error(tmp_path: Path) -> None:
    """As after ``cp -r`` of a folder whose ledger is a Redis server: both folders use that ledger.

    Before, the command ended with exit code 0 and 312 of 800 samples.
    """
    corpus = write_kernels(tmp_path / "corpus", [f"k{index}" for index in range(_NUM_KERNELS)])
    slow = {"kernel": "*", "action": "slow", "seconds": 0.01}
    device = replay_file(tmp_path / "replay.json", behaviours=[slow])
    command = Collect(corpus, tmp_path / "data", device, COMMIT_AT_ONCE)
    running = command.start()
    wait_until(
        lambda: any(one["event"] == "published" and one["tasks"] for one in events(command.out))
    )
    with (
        contextlib.closing(sqlite3.connect(next(command.out.glob("ledger/*.sqlite")))) as ledger,
        ledger,
    ):
        ledger.executemany(
            "INSERT OR IGNORE INTO done VALUES (?, 'kernels/of-the-copy.parquet')",
            [(task,) for task in range(_NUM_KERNELS)],
        )
        ledger.execute("DELETE FROM leases")
    _, err = running.communicate(timeout=60)
    assert running.returncode == Exit.BAD_INPUT, err
    assert f"but its ledger has counted all {_NUM_KERNELS} as finished" in err
    assert "Traceback" not in err
    assert llmperf("dataset", "verify", command.out).code == 0
    assert open_dataset(command.out).num_tasks < _NUM_KERNELS

    done = command.run()
    assert done.returncode == 0, done.stderr
    assert open_dataset(command.out).num_samples == _NUM_KERNELS * SAMPLES_A_KERNEL
    assert llmperf("dataset", "verify", command.out).code == 0
