"""Configs that would leave their buffers are found on a CPU device, in a child, before anything launches them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy
from tests.support.processes.stub_device import DEVICE
from workers.config import CollectConfig, PlanConfig
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.device.interface import DeviceRef
from workers.discovery.find import choose
from workers.execution.executor import FinishedTask
from workers.execution.pipeline import DevicePipeline
from workers.execution.task_state import TaskState
from workers.measure.launch_processor import LaunchProcessor
from workers.plan.plan import Plan

pytestmark = pytest.mark.opencl

WILD = "__kernel void wild(__global float *a, int n) { ulong i = get_global_id(0); a[i * n * 1048576UL] = i; }"
TAME = "__kernel void tame(__global float *a, int n) { int i = get_global_id(0); if (i < n) a[i] = i; }"
DIVERGENT = (
    "__kernel void divergent(__global float *a, int n) {"
    " int i = get_global_id(0); if (i < 7) barrier(CLK_LOCAL_MEM_FENCE); a[i] = i; }"
)
LARGEST_THAT_ENDS = 900
ENDLESS = (
    "__kernel void endless(__global float *a, int n) {"
    " ulong i = get_global_id(0); a[i * n * 1048576UL] = i;"
    f" while (get_global_size(0) > {LARGEST_THAT_ENDS}) a[0] += 1; }}"
)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, source in (("wild", WILD), ("tame", TAME), ("divergent", DIVERGENT)):
        (folder / f"{name}.cl").write_text(source)
    config = PlanConfig(
        samples_per_kernel=6, strategies=(Strategy.SIMPLE,), max_work_items=2**14, local_sizes="few"
    )
    corpus = read_sources([folder])
    return Plan(
        kernels=corpus.kernels,
        corpus_sha256=corpus.sha256,
        device_classes=(device_class_of(DEVICE),),
        plan_config=config,
        timing_config=CollectConfig().timing.model_copy(
            update={"max_readings": 5, "payload_checks": False, "spin_up_ms": 0.0}
        ),
    )


@contextmanager
def pipeline(plan: Plan, scratch: Path, *, work: str = "off") -> Iterator[DevicePipeline]:
    """A pipeline that takes the CPU device for a GPU, whose launches are checked before they run."""
    scratch.mkdir()
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef)
    config = CollectConfig.from_mapping(
        {"timing": plan.timing_config.model_dump(), "limits": {"work": work}}
    )
    made = DevicePipeline(
        ref=ref,
        config=config,
        scratch=scratch,
        worker_id="t/1",
        quiet=True,
        launches=LaunchProcessor(),
    )
    made._helper_devices.checks_access = True
    try:
        made.use(plan, made.open_device(measure_peaks=False), note=lambda *_, **__: None)
        yield made
    finally:
        made.close()


def statuses(finished: FinishedTask) -> Counter[str]:
    outcomes = [sample.outcome for sample in finished.result.samples]
    return Counter(one.code.value if isinstance(one, Failure) else "ok" for one in outcomes)


def run_all(made: DevicePipeline, plan: Plan) -> dict[str, FinishedTask]:
    found: dict[str, FinishedTask] = {}
    for index in range(3):
        task = plan.task(index)
        made.submit(task, Lease(task=index, epoch=1, token=index + 1, attempt=1))
        finished: list[FinishedTask] = []
        while not finished:
            finished = made.poll(0.5)
        found[task.kernel.name] = finished[0]
    return found


@pytest.mark.parametrize("work", ["off", "auto"])
def test_what_leaves_its_buffers_is_not_launched(tmp_path: Path, plan: Plan, work: str) -> None:
    with pipeline(plan, tmp_path / "scratch", work=work) as made:
        found = run_all(made, plan)
    assert statuses(found["wild"]) == {"quarantined": 6}
    for sample in found["wild"].result.samples:
        assert isinstance(sample.outcome, Failure)
        assert sample.outcome.stage is Stage.PROBE
        assert "beyond the end of argument 'a'" in sample.outcome.detail
    assert statuses(found["tame"]) == {"ok": 6}
    assert statuses(found["divergent"]).total() == 6, "children died of it, and it went on"
    has_work = [one.work is not None for one in found["tame"].result.samples]
    assert has_work == [work == "auto"] * 6


@pytest.mark.slow
def test_what_was_seen_before_it_hung_counts(tmp_path: Path, plan: Plan) -> None:
    """Only the smallest config ends. The larger ones are judged by it, and by their first unit."""
    (tmp_path / "kernels" / "endless.cl").write_text(ENDLESS)
    corpus = read_sources([tmp_path / "kernels" / "endless.cl"])
    endless = replace(plan, kernels=corpus.kernels, corpus_sha256=corpus.sha256)
    sizes = sorted(math.prod(one.global_size) for one in endless.configs(endless.task(0)))
    assert sizes[0] <= LARGEST_THAT_ENDS < sizes[1]
    with pipeline(endless, tmp_path / "scratch") as made:
        made.submit(endless.task(0), Lease(task=0, epoch=1, token=1, attempt=1))
        finished: list[FinishedTask] = []
        while not finished:
            finished = made.poll(0.5)
    assert statuses(finished[0]) == {"quarantined": 6}


def submit_all(made: DevicePipeline, plan: Plan) -> None:
    for index in range(plan.num_tasks):
        made.submit(plan.task(index), Lease(task=index, epoch=1, token=index + 1, attempt=1))


@pytest.mark.slow
def test_a_task_in_two_pools_is_one_task(tmp_path: Path, plan: Plan) -> None:
    with pipeline(plan, tmp_path / "scratch") as made:
        submit_all(made, plan)
        assert sorted(lease.task for lease in made.leases()) == [0, 1, 2]
        made.abandon([1])
        assert sorted(lease.task for lease in made.leases()) == [0, 2]
        finished: list[FinishedTask] = []
        while len(finished) < 2:
            finished += made.poll(0.5)
            in_hand = {lease.task for lease in made.leases()}
            assert len(made.leases()) == len(in_hand), "each once"
            assert not in_hand & {one.lease.task for one in finished}
        assert sorted(one.lease.task for one in finished) == [0, 2]
        assert made.leases() == []
        submit_all(made, plan)
        assert sorted(lease.task for lease in made.abandon_waiting()) == [0, 1, 2]
        assert made.leases() == []
        assert list((tmp_path / "scratch").glob("*.bin")) == []


@pytest.mark.slow
def test_what_cannot_be_built_is_a_build_error_however_far_it_reaches(
    tmp_path: Path, plan: Plan
) -> None:
    broken = replace(
        plan, kernels=tuple(replace(one, build_options="-Dulong=;") for one in plan.kernels)
    )
    with pipeline(broken, tmp_path / "scratch") as made:
        found = run_all(made, broken)
        assert made.leases() == []
    assert statuses(found["wild"]) == {"build_error": 1}


def test_what_is_spared_has_not_begun(plan: Plan) -> None:
    state = TaskState(
        plan=plan, task=plan.task(0), lease=Lease(task=0, epoch=1, token=1, attempt=1),
        device_id=DEVICE.device_id, worker_id="t/1", now_us=lambda: 1,
    )  # fmt: skip
    failure = Failure(code=FailureCode.QUARANTINED, stage=Stage.PROBE, detail="x")
    state.spare(0, failure)
    assert not state.has_outcomes
    assert 0 not in state.open_indices
    state.record(1, failure)
    assert state.has_outcomes


@pytest.mark.slow
def test_an_idle_device_does_not_wait_long_for_access_ranges(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.execution.pipeline._MOST_WAIT_S", 0.0)
    tame = next(n for n in range(3) if plan.task(n).kernel.name == "tame")
    with pipeline(plan, tmp_path / "scratch") as made:
        start_waiting = made._counting.start_waiting

        def start_late(*, most_busy: int) -> None:
            if made._timed:
                start_waiting(most_busy=most_busy)

        monkeypatch.setattr(made._counting, "start_waiting", start_late)
        made.submit(plan.task(tame), Lease(task=tame, epoch=1, token=1, attempt=1))
        finished: list[FinishedTask] = []
        while not finished:
            finished = made.poll(0.5)
    assert statuses(finished[0]) == {"ok": 6}
