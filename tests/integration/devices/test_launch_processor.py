"""A run child launches from the processor that its collector has taken, and from there only; who takes one."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import LaunchConfig, Strategy
from tests.support.collecting import write_kernels
from tests.support.processes.stub_device import DEVICE
from workers.collect.device_worker import DeviceWorker
from workers.config import CollectConfig, PlanConfig, TimingConfig
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.device.interface import DeviceFailure, DeviceRef
from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE
from workers.discovery.find import choose
from workers.execution.executor import FinishedTask
from workers.execution.pipeline import DevicePipeline
from workers.measure import run_child
from workers.measure.launch_processor import LaunchProcessor
from workers.plan.plan import Plan
from workers.sandbox.channel import Channel
from workers.sandbox.messages import ConfigFinished, RunDone, RunJob

pytestmark = pytest.mark.opencl

_CPUS = re.compile(r"Cpus_allowed_list:\t(.*)\n")


def cpu_ref() -> DeviceRef:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef)
    return ref


def make_plan(folder: Path, config: CollectConfig, device: Any = DEVICE) -> Plan:
    corpus = read_sources([write_kernels(folder / "kernels", ["k0"])])
    return Plan(
        kernels=corpus.kernels,
        corpus_sha256=corpus.sha256,
        device_classes=(device_class_of(device),),
        plan_config=config.plan,
        timing_config=config.timing,
    )


def allowed(pid: int) -> str:
    """Return what the operating system says of a process's first thread; empty where it is gone."""
    try:
        found = _CPUS.search(Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:
        return ""
    return found[1] if found else ""


class Watch:
    """A session and a loaded kernel that note where they are called from, and cannot launch."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, set[int]]] = []

    def _note(self, what: str) -> None:
        self.seen.append((what, os.sched_getaffinity(0)))

    def load(self, *_: object) -> Watch:
        self._note("load")
        return self

    def reserve(
        self, _: Sequence[LaunchConfig], *, with_padding: bool, ahead: bool = False
    ) -> None:
        self._note("reserve ahead" if ahead else "reserve")

    def spin_up(self, _: float) -> None:
        self._note("spin up")

    def sentinel_ns(self) -> float:
        self._note("sentinel")
        return 1.0

    def prepare(self, _: LaunchConfig) -> Watch:
        self._note("config")
        failure = Failure(code=FailureCode.LAUNCH_ERROR, stage=Stage.LAUNCH, detail="a stub")
        raise DeviceFailure(failure)

    def release(self) -> None:
        self._note("release")


@pytest.fixture
def channel() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is all")
@pytest.mark.parametrize("is_bound", [True, False])
def test_every_launch_under_the_lock_and_nothing_else_is_bound(
    tmp_path: Path,
    channel: tuple[Channel, Channel],
    monkeypatch: pytest.MonkeyPatch,
    is_bound: bool,
) -> None:
    config = CollectConfig(plan=PlanConfig(samples_per_kernel=3, strategies=(Strategy.SIMPLE,)))
    plan = make_plan(tmp_path, config)
    configs = plan.configs(plan.task(0))
    (tmp_path / "binary").touch()
    everywhere = os.sched_getaffinity(0)
    number = max(everywhere)
    job = RunJob(
        kernel=plan.task(0).kernel,
        device=DEVICE,
        binary_path=str(tmp_path / "binary"),
        options="",
        configs=configs,
        open_indices=tuple(range(len(configs))),
        launch_ns=(None,) * len(configs),
        check_indices=(),
        timing=TimingConfig().rule(),
        sentinel=True,
        lock_path=str(tmp_path / "device.lock"),
        budget_s=None,
        has_padding=False,
        processor=number if is_bound else None,
    )
    told = iter([1.0, 3.5])
    monkeypatch.setattr(run_child, "kept_waiting_s", lambda: next(told))
    watch = Watch()
    run_child._run(channel[0], watch, job)  # type: ignore[arg-type]
    held = {number} if is_bound else everywhere
    assert watch.seen == [
        ("load", everywhere),
        ("reserve ahead", everywhere),
        ("spin up", held),
        ("reserve", held),
        *[("config", held)] * len(configs),
        ("release", held),
        ("sentinel", held),
    ]
    assert os.sched_getaffinity(0) == everywhere
    while not isinstance(message := channel[1].receive(), RunDone):
        assert not isinstance(message, ConfigFinished) or not message.sticky
    assert message.kept_waiting_s == 2.5


@pytest.mark.slow
def test_a_real_run_child_is_told_which(tmp_path: Path) -> None:
    config = CollectConfig(
        plan=PlanConfig(samples_per_kernel=6, strategies=(Strategy.SIMPLE,)),
        timing=TimingConfig(spin_up_ms=300.0),
    )
    launches = LaunchProcessor()
    launches.number = max(os.sched_getaffinity(0))
    (tmp_path / "scratch").mkdir()
    made = DevicePipeline(
        ref=cpu_ref(),
        config=config,
        scratch=tmp_path / "scratch",
        worker_id="t/1",
        quiet=True,
        launches=launches,
    )
    seen: set[str] = set()
    finished: list[FinishedTask] = []
    notes: list[dict[str, Any]] = []
    try:
        device = made.open_device(measure_peaks=False)
        plan = make_plan(tmp_path, config, device)
        made.use(plan, device, note=lambda _, **fields: notes.append(fields))
        made.submit(plan.task(0), Lease(task=0, epoch=1, token=1, attempt=1))
        while not finished:
            finished = made.poll(0.02)
            seen |= {allowed(child.pid) for child in made._slot.children()}
    finally:
        made.close()
    statuses = {type(sample.outcome).__name__ for sample in finished[0].result.samples}
    assert statuses == {"Timing"}
    assert str(launches.number) in seen, seen
    assert [note["processor"] for note in notes if "turns" in note] == [launches.number]


@pytest.mark.parametrize(
    ("is_gpu", "is_wanted", "number"), [(True, True, 3), (True, False, None), (False, True, None)]
)
def test_who_takes_a_processor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_gpu: bool,
    is_wanted: bool,
    number: int | None,
) -> None:
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("workers.collect.device_worker.needs_owner", lambda *_: is_gpu)
    monkeypatch.setattr("workers.measure.launch_processor.for_launches", lambda _: (3, 2))
    monkeypatch.setattr("workers.measure.launch_processor.core_of", lambda one: one)
    config = CollectConfig(timing=TimingConfig(one_processor=is_wanted))
    with DeviceWorker(cpu_ref(), config, where="here") as worker:
        worker.open()
        assert worker._launches.number == number
        other = LaunchProcessor()
        other.take()
        assert other.number == (3 if number is None else 2)
        other.give_up()
    assert worker._launches.number is None, "it goes with its collector"
