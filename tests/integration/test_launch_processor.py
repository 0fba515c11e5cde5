"""A real run child launches from the processor that its collector has taken, and from there only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy
from tests.integration.collecting import write_kernels
from workers.config import CollectConfig, PlanConfig
from workers.corpus import read_sources
from workers.device.find import choose
from workers.device.interface import DeviceRef
from workers.executor import FinishedTask
from workers.joining import device_class_of
from workers.launch_processor import LaunchProcessor
from workers.pipeline import DevicePipeline
from workers.plan import Plan

_CPUS = re.compile(r"Cpus_allowed_list:\t(.*)\n")


def allowed(pid: int) -> str:
    """Return what the operating system says of a process's first thread; empty where it is gone."""
    try:
        found = _CPUS.search(Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:
        return ""
    return found[1] if found else ""


def test_a_run_child_launches_from_the_given_processor(tmp_path: Path) -> None:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef)
    config = CollectConfig(
        plan=PlanConfig(samples_per_kernel=6, strategies=(Strategy.SIMPLE,)),
        timing=CollectConfig().timing.model_copy(update={"spin_up_ms": 300.0}),
    )
    launches = LaunchProcessor()
    launches.number = max(os.sched_getaffinity(0))
    (tmp_path / "scratch").mkdir()
    made = DevicePipeline(
        ref=ref,
        config=config,
        scratch=tmp_path / "scratch",
        worker_id="t/1",
        quiet=True,
        launches=launches,
    )
    corpus = read_sources([write_kernels(tmp_path / "kernels", ["k0"])])
    seen: list[str] = []
    finished: list[FinishedTask] = []
    try:
        device = made.open_device(measure_peaks=False)
        plan = Plan(
            kernels=corpus.kernels,
            corpus_sha256=corpus.sha256,
            device_classes=(device_class_of(device),),
            plan_config=config.plan,
            timing_config=config.timing,
        )
        made.use(plan, device, note=lambda *_, **__: None)
        made.submit(plan.task(0), Lease(task=0, epoch=1, token=1, attempt=1))
        while not finished:
            finished = made.poll(0.02)
            seen += [allowed(child.pid) for child in made._slot.children()]
    finally:
        made.close()
    statuses = {type(sample.outcome).__name__ for sample in finished[0].result.samples}
    assert statuses == {"Timing"}
    assert str(launches.number) in seen, seen
    everywhere = sorted(os.sched_getaffinity(0))
    assert len(everywhere) == 1 or set(seen) - {str(launches.number), ""}, "before its turn: any"
