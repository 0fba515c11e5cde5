"""Children get copies of a compiler cache, and leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.collecting import REPOSITORY
from workers.device.interface import DeviceRef
from workers.sandbox.child import CACHE_FOLDER, Child
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.processors import for_work_ahead

PATH = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
REF = DeviceRef(selector="pocl", platform="p", name="n", environment={"PYTHONPATH": PATH})


@contextmanager
def started(starter: ChildStarter, name: str, *, beside_timing: bool = False) -> Iterator[Child]:
    module = "tests.support.processes.stub_child"
    child = starter.start(module, name, REF, beside_timing=beside_timing)
    try:
        yield child
    finally:
        child.kill()


def test_later_children_start_with_copies_of_the_first_ones_cache(tmp_path: Path) -> None:
    starter = ChildStarter(tmp_path)
    with started(starter, "first") as first:
        cache = first.scratch / CACHE_FOLDER
        cache.mkdir(exist_ok=True)
        (cache / "kernel.so").write_text("compiled")
        starter.keep_cache_of(first)
        (cache / "kernel.so").write_text("spoilt later")
    with started(starter, "second") as second:
        copy = second.scratch / CACHE_FOLDER / "kernel.so"
        assert copy.read_text() == "compiled"
        copy.write_text("spoilt")
    assert second.scratch.exists(), "how it ended may still be asked for"
    with started(starter, "third") as third:
        assert (third.scratch / CACHE_FOLDER / "kernel.so").read_text() == "compiled"
        assert not first.scratch.exists()
        assert not second.scratch.exists()


def test_a_runtime_without_a_cache_has_nothing_to_keep(tmp_path: Path) -> None:
    starter = ChildStarter(tmp_path)
    with started(starter, "first") as first:
        starter.keep_cache_of(first)
    with started(starter, "second") as second:
        assert not (second.scratch / CACHE_FOLDER / "kernel.so").exists()


def test_a_child_beside_the_timing_stands_back(tmp_path: Path) -> None:
    starter = ChildStarter(tmp_path)
    mine = psutil.Process()
    with (
        started(starter, "compile", beside_timing=True) as behind,
        started(starter, "run") as front,
    ):
        assert psutil.Process(behind.pid).nice() > psutil.Process(front.pid).nice() == mine.nice()
        left = for_work_ahead(mine.cpu_affinity()) or mine.cpu_affinity()
        assert set(psutil.Process(behind.pid).cpu_affinity()) == set(left)
        assert psutil.Process(front.pid).cpu_affinity() == mine.cpu_affinity()


def test_only_a_timing_child_has_all_threads_of_a_cpu_device(tmp_path: Path) -> None:
    starter = ChildStarter(tmp_path)
    module = "tests.support.processes.stub_child"
    helper = starter.start(module, "analyse", REF)
    timing = starter.start(module, "run", REF, is_timing=True)
    try:
        variables = [psutil.Process(one.pid).environ() for one in (helper, timing)]
    finally:
        helper.kill()
        timing.kill()
    assert [one.get("POCL_CPU_MAX_CU_COUNT") for one in variables] == ["1", None]
    assert [one.get("POCL_MAX_PTHREAD_COUNT") for one in variables] == ["1", None]
