"""The count at the end of a run, against one that takes each task by itself."""

from collections import Counter
from pathlib import Path

import pytest

from llmperf.cli.collect import _finish
from llmperf.exits import CommandError
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Strategy
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.run import create_or_join_run
from llmperf_common.store.tables.reader import open_dataset
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_device,
    make_device_class,
    make_kernel,
    make_result,
    make_run,
    mixed_outcome,
    publish_entries,
    write_pair,
)
from workers.collect.loop_interfaces import EndReason
from workers.collect.summary import CollectSummary, summarise
from workers.config import PlanConfig, TimingConfig
from workers.plan.plan import Plan

UNSUPPORTED = Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail="an image")
CONFIGS = 4


def plan_of(num_kernels: int) -> Plan:
    kernels = [make_kernel(i, failure=UNSUPPORTED if i == 1 else None) for i in range(num_kernels)]
    return Plan(
        kernels=tuple(sorted(kernels, key=lambda one: one.kernel_id)),
        corpus_sha256="c",
        device_classes=(make_device_class("replay"), make_device_class("other")),
        plan_config=PlanConfig(samples_per_kernel=CONFIGS, strategies=(Strategy.SIMPLE,)),
        timing_config=TimingConfig(),
    )


def collected(folder: Path, plan: Plan, tasks: list[int], short: int | None = None) -> None:
    """Write results of some tasks, two a shard; task ``short`` has a row less than the others."""
    fs = PosixFilesystem(folder)
    create_or_join_run(fs, make_run(plan_hash=plan.plan_hash, num_tasks=plan.num_tasks))
    publish_entries(fs, [], plan_hash=plan.plan_hash)
    for number, two in enumerate(tasks[i : i + 2] for i in range(0, len(tasks), 2)):
        results = []
        for index in two:
            task = plan.task(index)
            rows = CONFIGS - (index == short)
            outcome = mixed_outcome if index % 2 else good_outcome
            device = make_device(device_class=task.device_class.name)
            outcomes = [outcome(index, config) for config in range(rows)]
            results.append(
                make_result(task.kernel, outcomes, device=device, plan_hash=plan.plan_hash)
            )
        publish_entries(
            fs,
            write_pair(fs, f"s{number}", results, plan_hash=plan.plan_hash),
            plan_hash=plan.plan_hash,
        )


def counted(folder: Path, plan: Plan, num_dropped: int = 0) -> CollectSummary:
    fs = PosixFilesystem(folder)
    return summarise(fs, plan, [], EndReason.INTERRUPTED, seconds=1.0, num_dropped=num_dropped)


@pytest.mark.parametrize("tasks", [[], [0], [1, 4, 5], list(range(12))])
def test_what_is_done_and_what_is_left(tmp_path: Path, tasks: list[int]) -> None:
    plan = plan_of(6)
    collected(tmp_path, plan, tasks)
    found = counted(tmp_path, plan)
    statuses = Counter(open_dataset(tmp_path).samples(["status"]).column("status").to_pylist())
    left = [plan.num_samples(plan.task(i)) for i in range(plan.num_tasks) if i not in tasks]
    assert found.num_ok == statuses.pop("ok", 0)
    assert found.failures_by_code == statuses
    assert (found.num_tasks_done, found.num_tasks) == (len(tasks), 12)
    assert found.num_pending == sum(left)


def test_beyond_some_pending_tasks_an_estimate_stands_for_each(tmp_path, monkeypatch):
    monkeypatch.setattr("workers.collect.summary._MAX_TASKS_COUNTED", 3)
    plan = plan_of(6)
    collected(tmp_path, plan, [0, 2])
    found = counted(tmp_path, plan)
    exact = sum(plan.num_samples(plan.task(i)) for i in (1, 3, 4))
    assert found.num_pending == exact + 7 * CONFIGS


def test_a_task_with_a_row_too_few_is_noticed(tmp_path: Path) -> None:
    plan = plan_of(6)
    whole = next(i for i in range(6) if plan.task(i).kernel.failure is None)
    assert plan.num_samples(plan.task(whole)) == CONFIGS
    collected(tmp_path, plan, [whole], short=whole)
    with pytest.raises(AssertionError, match="lost or doubled"):
        counted(tmp_path, plan)


@pytest.mark.parametrize(
    ("num_dropped", "words"),
    [
        (0, "interrupted; all finished tasks are saved; run the same command again"),
        (5, "5 finished tasks were dropped when the ledger was lost, all others are saved"),
        (99, "interrupted; 10 finished tasks were dropped"),
    ],
)
def test_tasks_that_were_dropped_are_not_called_saved(
    tmp_path: Path, num_dropped: int, words: str
) -> None:
    plan = plan_of(6)
    collected(tmp_path, plan, [0, 2])
    with pytest.raises(CommandError, match=words):
        _finish(counted(tmp_path, plan, num_dropped))
