"""The simulator finds nothing in the shipped code, and every bug that is put into it."""

from __future__ import annotations

import dataclasses
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.ledger.protocol import Holder
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests import publish, segments, versions
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest
from llmperf_common.store.tables import shard
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.verify import verify
from tests.simulation import memo
from tests.simulation.__main__ import missing_events
from tests.simulation.collector import LateWriter
from tests.simulation.decisions import ReplayChooser
from tests.simulation.planted import PLANTED
from tests.simulation.schedule import run_schedule
from tests.simulation.scheduler import Scheduler
from tests.simulation.search import search_range, shrink
from tests.simulation.work import PLAN_HASH, SimExecutor, SimPlan, simulated_result
from workers.collect.loop import CollectLoop
from workers.collect.observers import SilentObserver
from workers.config import LedgerConfig, StoreConfig

_SCHEDULES = 2_000
_ENOUGH_TO_FIND = 3_000
"""Every planted bug must be found within so many schedules; the mean is below 200."""
_NOT_REAL_ROWS = (ProblemKind.ID, ProblemKind.STATUS, ProblemKind.RUN)
"""Simulated tasks have short ids; all else that verify checks must be right."""
_OF_THE_ISSUE = (
    "commit_without_token_check",
    "publish_without_create_if_absent",
    "rebuild_reads_orphans",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The store warns of every damaged shard: many, here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "num_schedules", [_SCHEDULES // 8, pytest.param(_SCHEDULES, marks=pytest.mark.slow)]
)
def test_no_schedule_loses_or_doubles_a_task(num_schedules: int) -> None:
    report = search_range(0, num_schedules, planted="nothing")
    assert report.failure is None, f"{report.failure.violation}, seed {report.failure.seed}"
    assert report.num_schedules == num_schedules
    assert missing_events(report) == []


class NothingKept:
    """In place of what a process keeps of the segments that it has read: simulated processes share no memory."""

    def get(self, _sha256: str) -> None:
        return None

    def setdefault(self, _sha256: str, segment: object) -> object:
        return segment


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of few shards have segments, and versions go at once."""
    monkeypatch.setattr(segments, "SEALED_AT", 3)
    monkeypatch.setattr(segments, "FANOUT", 2)
    monkeypatch.setattr(segments, "_loaded", NothingKept())
    monkeypatch.setattr(versions, "NUM_RECENT", 1)


@pytest.mark.slow
def test_segments_and_versions_that_go_lose_nothing(short_lists: None) -> None:
    report = search_range(0, _SCHEDULES // 4, planted="nothing")
    assert report.failure is None, f"{report.failure.violation}, seed {report.failure.seed}"


def test_a_manifest_before_its_segment_is_found(
    short_lists: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seal(*given: Any) -> segments.Sealed[ShardEntry]:
        return dataclasses.replace(segments.seal(*given), files=())

    monkeypatch.setattr(publish, "seal", seal)
    report = search_range(0, 20, planted="nothing")
    assert report.failure is not None
    assert "manifest without its segment" in str(report.failure.violation)


@pytest.mark.parametrize("first", [1_000_000, 2_000_000, 3_000_000])
@pytest.mark.parametrize("planted", _OF_THE_ISSUE)
def test_the_issues_bugs_are_found_from_any_seed(planted: str, first: int) -> None:
    assert search_range(first, first + _ENOUGH_TO_FIND, planted=planted).failure is not None


@pytest.mark.parametrize("planted", sorted(set(PLANTED) - {"nothing", *_OF_THE_ISSUE}))
def test_other_planted_bugs_are_found(planted: str) -> None:
    assert search_range(0, _ENOUGH_TO_FIND, planted=planted).failure is not None


@pytest.mark.parametrize("first", [100, 300, 600, 700])
def test_a_found_schedule_is_made_small(first: int) -> None:
    last = first + _ENOUGH_TO_FIND
    failure = search_range(first, last, planted="rebuild_reads_orphans").failure
    assert failure is not None
    small = shrink(failure, planted="rebuild_reads_orphans")
    assert small.violation is not None
    assert failure.violation is not None
    assert small.violation.kind == failure.violation.kind
    assert len(small.taken) <= min(6, len(failure.taken))
    assert small.trace


def test_a_schedule_repeats_exactly() -> None:
    first = run_schedule(5, with_trace=True)
    again = run_schedule(5, with_trace=True)
    replayed = run_schedule(5, taken=first.taken, with_trace=True)
    assert first.trace == again.trace == replayed.trace
    assert first.coverage


def test_a_schedule_is_the_same_in_another_process() -> None:
    """Nothing depends on the order of a set."""
    command = [sys.executable, "-m", "tests.simulation", "--replay", "5"]
    texts = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "commit" in texts.pop()


@pytest.mark.parametrize("seed", range(5))
def test_what_a_schedule_leaves_passes_verify(seed: int, tmp_path: Path) -> None:
    outcome = run_schedule(seed)
    assert outcome.violation is None
    for folder, files in outcome.folders.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    report = verify(tmp_path)
    assert report.counts.tasks >= 2
    assert [p for p in report.problems if p.kind not in _NOT_REAL_ROWS] == []
    assert report.notes == ()


def test_the_memos_say_what_the_shipped_functions_say() -> None:
    results = [simulated_result(0, 1, 3), simulated_result(2, 1, 4)]
    for stem in ("a", "b"):
        shipped, remembered = (
            encode(stem, results, [3, 4], plan_hash=PLAN_HASH, epoch=1)
            for encode in (shard.encode_results, memo.encode_results)
        )
        assert remembered == shipped
    files = memo.encode_results("c", results, [3, 4], plan_hash=PLAN_HASH, epoch=1)
    for file in files:
        table, footer = shard.decode(file.data, file.name)
        assert memo.decode(file.data, file.name) == (table, footer)
        assert memo.read_footer(file.data, file.name) == footer
    half = files[0].data[:100]
    with pytest.raises(shard.ShardError):
        memo.decode(half, "kernels/half")


def test_finishing_publishes_what_the_next_ledger_holds(tmp_path: Path) -> None:
    """A loop that finds its ledger gone at the very end must not leave a dead colleague's commit to the sweep.

    The search reaches this only by chance: it takes a stop, a wipe and a crash within a few operations.
    """
    holder = Holder(host="sim", boot_id="b", pid=1, start_ticks=0)
    fs = PosixFilesystem(tmp_path)
    ledgers = []
    for epoch, is_there in ((1, _no), (2, _yes)):
        connection = sqlite3.connect(":memory:", isolation_level=None)
        SqliteLedger.create(connection, epoch=epoch, plan_hash=PLAN_HASH, shards=[], done=[])
        ledgers.append(
            SqliteLedger(
                connection,
                clock_s=lambda: 0.0,
                is_alive=_yes,
                is_current=is_there,
            )
        )
    lost, rebuilt = ledgers
    (lease,) = rebuilt.claim(holder=holder, tasks=range(1), limit=1, ttl_s=9)
    entry = ShardEntry.of("kernels/colleague.parquet", b"x", rows=1, tasks=1)
    fs.put_if_absent(entry.name, b"x")
    rebuilt.commit(shards=[entry], leases=[lease])
    attached = iter((lost, rebuilt))
    loop = CollectLoop(
        fs=fs,
        attach=lambda: next(attached),
        plan=SimPlan(num_tasks=1),
        tasks=range(1),
        executor=SimExecutor(
            Scheduler(chooser=ReplayChooser({}), act=lambda decision, process: None),
            claim_ahead=1,
            durations_s=(1.0,),
        ),
        holder=holder,
        device_shards=[],
        clock_s=lambda: 0.0,
        new_stem=str,
        store_config=StoreConfig(),
        ledger_config=LedgerConfig(),
        observer=SilentObserver(),
        writer=LateWriter(0),
    )
    loop.finish()
    loop.close()
    manifest = latest_manifest(fs)
    assert manifest is not None
    assert manifest.shards == (entry,)


def _yes(holder: Holder | None = None) -> bool:
    del holder
    return True


def _no() -> bool:
    return False
