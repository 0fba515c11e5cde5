"""The run slot with children that die at each step: the death has an owner, and the work goes on."""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmperf_common.failures import Failure
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy
from tests.integration.collecting import REPOSITORY, write_kernels
from tests.integration.stub_device import DEVICE
from workers.child import Child
from workers.config import CollectConfig, PlanConfig
from workers.corpus import read_sources
from workers.joining import device_class_of
from workers.limits import limits_on
from workers.plan import Plan
from workers.run_children import DeviceLostError
from workers.running import RunSlot
from workers.task_state import TaskState


@contextmanager
def slot(folder: Path, where: str, *, child_per_task: bool = False) -> Iterator[RunSlot]:
    environment = {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    }

    def start(name: str) -> Child:
        module = "tests.integration.stub_child"
        return Child(module, where, environment=environment, scratch=folder / name)

    made = run_slot(start, folder, child_per_task=child_per_task)
    try:
        made.use_device(made.open_device(measure_peaks=False))
        yield made
    finally:
        made.close()


def run_slot(
    start: Callable[[str], Child], folder: Path, *, child_per_task: bool = False
) -> RunSlot:
    config = CollectConfig()
    return RunSlot(
        start_child=start,
        limits=limits_on(config, gpu=False, shared=not child_per_task),
        timing=config.timing,
        child_per_task=child_per_task,
        turn_path=folder / "turn",
    )


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    corpus = read_sources([write_kernels(tmp_path / "kernels", ["k0", "k1"])])
    config = CollectConfig(plan=PlanConfig(samples_per_kernel=3, strategies=(Strategy.SIMPLE,)))
    return Plan(
        kernels=corpus.kernels,
        corpus_sha256=corpus.sha256,
        device_classes=(device_class_of(DEVICE),),
        plan_config=config.plan,
        timing_config=config.timing,
    )


def run(made: RunSlot, plan: Plan, index: int, folder: Path) -> Counter[str]:
    """Run one task to its end; returns its rows' codes. The stub itself answers ``launch_error``."""
    task = plan.task(index)
    state = TaskState(
        plan=plan, task=task, lease=Lease(task=index, epoch=1, token=index + 1, attempt=1),
        device_id=DEVICE.device_id, worker_id="test/1", now_us=lambda: 1,
    )  # fmt: skip
    made.run(state, folder / f"{index}.bin")
    deadline_s = time.monotonic() + 30
    finished: list[TaskState] = []
    while not finished:
        assert time.monotonic() < deadline_s, "the slot does not go on"
        for child in select.select(made.children(), [], [], 0.1)[0]:
            if child in made.children():
                made.handle(child)
        made.check_deadlines(time.monotonic())
        finished = made.take_finished()
    assert finished == [state]
    samples = state.result().samples
    return Counter(
        sample.outcome.code.value for sample in samples if isinstance(sample.outcome, Failure)
    )


def test_a_task_and_the_next(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "") as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}
        assert run(made, plan, 1, tmp_path) == {"launch_error": 3}


def test_a_death_while_loading_is_tried_again(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "first load") as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}


def test_a_kernel_that_always_dies_loading_is_one_row(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "load") as made:
        assert run(made, plan, 0, tmp_path) == {"compiler_crash": 1}
        assert run(made, plan, 1, tmp_path) == {"compiler_crash": 1}


@pytest.mark.parametrize("child_per_task", [False, True])
def test_a_death_on_release_fails_the_last_config(
    tmp_path: Path, plan: Plan, child_per_task: bool
) -> None:
    with slot(tmp_path, "release", child_per_task=child_per_task) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 2, "device_fault": 1}


def test_a_death_on_exit_counts_where_each_task_has_its_child(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "exit", child_per_task=True) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 2, "device_fault": 1}
        assert run(made, plan, 1, tmp_path) == {"launch_error": 2, "device_fault": 1}


def test_a_device_that_cannot_be_opened_is_lost_with_the_childs_words(tmp_path: Path) -> None:
    def start(name: str) -> Child:
        return Child(
            "tests.integration.no_such_module", "", environment={}, scratch=tmp_path / name
        )

    made = run_slot(start, tmp_path)
    with pytest.raises(DeviceLostError, match="no_such_module"):
        made.open_device(measure_peaks=False)
    assert made.children() == []
