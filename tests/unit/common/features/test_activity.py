"""Kernels that do nothing on their inputs are distinguished from those that work, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf.api import report
from llmperf_common.features.activity import Activity, activity_of_kernel, activity_of_launch
from llmperf_common.features.work import Work
from llmperf_common.records import Checks, TaskResult
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.run import create_or_join_run
from llmperf_common.store.tables.card import card_text
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.shard import encode_device, write_shard
from llmperf_common.store.tables.stats import dataset_stats
from tests.support.factories.dataset_factory import (
    PLAN_HASH,
    make_device,
    make_failure,
    make_kernel,
    make_result,
    make_run,
    make_timing,
    publish_entries,
    write_pair,
)
from tests.unit.common.store.upkeep.test_work_columns import WORK

NUM_ITEMS = 64
ACCESSES = (
    "global_loads", "global_stores", "global_atomics", "constant_loads",
    "local_loads", "local_atomics",
)  # fmt: skip


def work(
    active: float, *, spread: float = 0.1, peak: float = 1.0, accesses: float = 64.0, ops: float = 9
) -> Work:
    busy = replace(WORK, active_items=active, item_spread=spread, warp_peak=peak, int_ops=ops)
    return replace(busy, **dict.fromkeys(ACCESSES, 0.0), local_stores=accesses)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (work(0.0), Activity.NOTHING),
        (work(64.0), Activity.ACTIVE),
        (work(6.0, spread=3.0), Activity.FEW_ITEMS),
        (work(6.0, peak=9.0), Activity.FEW_ITEMS),
        (work(6.0, accesses=31.0), Activity.FEW_ITEMS),  # most return before they touch memory
        (work(6.0, accesses=0.0, ops=64_000.0), Activity.ACTIVE),  # a search that rarely finds
        (work(7.0, spread=3.0), Activity.ACTIVE),
        (work(7.0, accesses=7.0), Activity.ACTIVE),
        (work(1.0, spread=0.35, peak=2.1), Activity.ACTIVE),  # a reduction: all work, one stores
    ],
)
def test_a_launch(found: Work, wanted: Activity) -> None:
    assert activity_of_launch(NUM_ITEMS, found) is wanted


BUSY, FEW, IDLE = work(64.0), work(2.0, spread=5.0), work(0.0)


@pytest.mark.parametrize(
    ("works", "changed", "wanted"),
    [
        ([], [], None),
        ([None, None], [None, None], None),
        ([None, None], [False, None], Activity.NOTHING),
        ([None, None], [False, True], None),
        ([IDLE, None], [None, None], Activity.NOTHING),
        ([IDLE, IDLE], [True, None], Activity.NOTHING),
        ([IDLE, IDLE, BUSY], [None] * 3, Activity.FEW_ITEMS),
        ([IDLE, BUSY], [None] * 2, Activity.ACTIVE),
        ([FEW, FEW, BUSY], [None] * 3, Activity.FEW_ITEMS),
        ([BUSY], [False], Activity.ACTIVE),
    ],
)
def test_a_kernel(
    works: Sequence[Work | None], changed: Sequence[bool | None], wanted: Activity | None
) -> None:
    rows = [(NUM_ITEMS, one, other) for one, other in zip(works, changed, strict=True)]
    assert activity_of_kernel(rows) is wanted


def result_with(number: int, found: Work | None, writes_output: bool | None) -> TaskResult:
    timing = replace(make_timing(), checks=Checks(writes_output=writes_output))
    result = make_result(make_kernel(number), [timing, make_failure()])
    samples = tuple(replace(one, work=found) for one in result.samples)
    return replace(result, samples=samples)


def test_they_are_counted_in_stats_card_and_report(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fs = PosixFilesystem(data)
    create_or_join_run(fs, make_run(num_tasks=5))
    results = [
        result_with(0, BUSY, True),
        result_with(1, IDLE, None),
        result_with(2, None, False),
        result_with(3, FEW, None),
        result_with(4, None, True),
    ]
    device = write_shard(fs, encode_device(make_device(), plan_hash=PLAN_HASH))
    publish_entries(fs, [*write_pair(fs, "e000001-a", results), device])
    dataset = open_dataset(data)
    told = dataset.kernels(["activity"]).column("activity").to_pylist()
    assert told == ["active", "nothing", "nothing", "few_items", None]
    stats = dataset_stats(dataset)
    assert stats.by_activity == {"nothing": 2, "active": 1, "few_items": 1}
    card = " ".join(card_text(dataset, pretty_name="x", license_name=None).split())
    assert "- 2 of 4 kernels with timed launches do nothing on their inputs, 1 leave" in card
    report(data, out=tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Activity of kernels on their inputs" in page
    assert "Kernels that do nothing or little on their inputs (3 of 3)" in page
