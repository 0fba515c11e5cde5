"""The part *ours*: ``llmperf collect`` as a user runs it, and the times in its dataset."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.collecting.collectors.rates import Stretch, TimedRow
from benchmarks.collecting.collectors.slicing import was_launched
from benchmarks.collecting.collectors.supervise import run_command
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.tables.reader import Dataset, open_dataset

_GRACE_S = 90.0
"""Seconds allowed beyond ``--max-time``: start-up, the kernel being timed, publishing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """One ``llmperf collect`` command; ``options`` are its further arguments."""

    corpus: Path
    out: Path
    device: str
    max_s: float
    options: tuple[str, ...] = ()

    def run(self, environment: Mapping[str, str]) -> tuple[int | None, float]:
        """Run the command; return its exit code (None: killed) and its wall time in s."""
        start = "from llmperf.cli.main import run; run()"
        words = [
            sys.executable,
            "-c",
            start,
            "collect",
            "--corpus",
            str(self.corpus),
            "--out",
            str(self.out),
            "--device",
            self.device,
            "--max-time",
            f"{self.max_s:g}s",
            *self.options,
        ]
        return run_command(
            words,
            environment=environment,
            log_path=self.out.with_name(f"{self.out.name}.txt"),
            max_s=self.max_s + _GRACE_S,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A dataset with its rows in the order in which they were made."""

    dataset: Dataset
    rows: tuple[Mapping[str, Any], ...]
    stretch: Stretch

    @property
    def work_s(self) -> float:
        """Seconds from the first claim to the last row."""
        return self.stretch.seconds

    @property
    def ok_ids(self) -> frozenset[str]:
        """Sample ids of the launch configs with a time."""
        return frozenset(row["sample_id"] for row in self.rows if row["status"] == "ok")


def read_collected(folder: Path) -> Collected:
    """Read a dataset that ``Collect.run`` has left, whole or in part.

    Raises:
        StoreError: There is no dataset, or no task was finished.
    """
    dataset = open_dataset(folder)
    table = dataset.samples()
    if not table.num_rows:
        raise StoreError(
            f"{folder}: no task was finished in time (--max-seconds-ours); {folder}.txt tells how far it came"
        )
    columns = set(table.column_names) - {"time_ns", "cold_ns"}
    rows = table.select(sorted(columns)).to_pylist()
    # Rows are sorted by their time; rows of equal time keep the shard's order.
    rows.sort(key=lambda row: row["created_at"])
    return Collected(dataset=dataset, rows=tuple(rows), stretch=_stretch(folder, rows))


def _stretch(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Stretch:
    """Return the run as one stretch, from the first claim; a row ends at ``created_at``.

    A config that was not launched has a row, too, but took no time of the device. Therefore only
    the rows that the other parts get are counted.
    """
    timed = tuple(
        TimedRow(
            kernel_id=row["kernel_id"],
            sample_id=row["sample_id"],
            end_s=row["created_at"].timestamp(),
        )
        for row in rows
        if was_launched(row)
    )
    return Stretch(start_s=_first_claim_s(folder), rows=timed)


def _first_claim_s(folder: Path) -> float:
    moments = []
    for path in sorted((folder / "events").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == "claimed":
                moments.append(float(event["at_s"]))
                break
    if not moments:
        raise StoreError(f"{folder} has no claimed task in its events")
    return min(moments)
