"""NVML, the monitor, the owner's lock and the record of a GPU, on a real one: ``pytest -m gpu tests/gpu``.

The load is a process of its own, so that this one needs no OpenCL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmperf.exits import Exit
from llmperf_common.records import Device
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import KERNELS, Collect, run_llmperf, write_kernels
from workers.collect.joining import with_limits
from workers.device.device_class import device_class_of
from workers.device.nvidia.gpu_lock import gpu_lock, owner_of
from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE
from workers.device.nvidia.monitor import Reading
from workers.device.nvidia.nvml import NvmlAbsent, all_compute_pids, open_gpu, open_monitor
from workers.device.nvidia.nvml_gpu import NvmlGpu
from workers.discovery.find import TriedDevice, try_all_runtimes
from workers.discovery.ownership import strangers_among

pytestmark = pytest.mark.gpu

FAST = ("--samples-per-kernel", "6", "--set", "store.commit_interval_s=0.1")
LOAD = """
import json, select, sys
from workers.discovery.opening import open_session
from workers.device.interface import DeviceRef
with open_session(DeviceRef(**json.loads(sys.argv[1]))) as session:
    session.spin_up(500)
    print("busy", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        session.spin_up(50)
"""
ORPHAN = """
import os, subprocess, sys
if os.fork() == 0:  # its parent goes: the load is no child of ours
    os.setsid()
    load = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdin=0, stdout=1, start_new_session=True)
    os.write(1, f"{load.pid}\\n".encode())
    os._exit(0)
os._exit(0)
"""


@pytest.fixture(scope="session")
def tried() -> TriedDevice:
    report = try_all_runtimes()
    for one in report.devices:
        if one.usable and one.ref.selector == "cuda:0":
            return one
    seen = [
        f"{one.ref.selector} {one.ref.name}: {one.reason or 'usable'}" for one in report.devices
    ]
    pytest.skip(f"no usable NVIDIA GPU (OCL_ICD_VENDORS, see llmperf doctor); there is: {seen}")


@pytest.fixture(scope="session")
def device(tried: TriedDevice) -> Device:
    assert tried.device is not None
    return tried.device


@pytest.fixture
def gpu(device: Device) -> Iterator[NvmlGpu]:
    found = open_gpu(device.device_uuid)
    if isinstance(found, NvmlAbsent):
        pytest.skip(f"{found.reason}: {found.mend}")
    with found:
        yield found


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A colleague's collector must not fail these tests, nor they it."""
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(tmp_path))


def reference(tried: TriedDevice) -> str:
    return json.dumps(dataclasses.asdict(tried.ref))


@contextlib.contextmanager
def load(tried: TriedDevice) -> Iterator[int]:
    """Keep the GPU busy from a child in a process group of its own; yields its pid."""
    command = [sys.executable, "-c", LOAD, reference(tried)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, **tried.ref.environment},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        try:
            yield process.pid
        finally:
            process.kill()


@contextlib.contextmanager
def stranger(tried: TriedDevice) -> Iterator[int]:
    """Keep the GPU busy from a process that is not of our tree; yields its pid."""
    command = [sys.executable, "-c", ORPHAN, LOAD, reference(tried)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **tried.ref.environment},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "busy\n"
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def test_the_card_is_found_by_uuid_and_by_its_place(device: Device, gpu: NvmlGpu) -> None:
    assert gpu.uuid == f"GPU-{device.device_uuid}"
    assert device.pci_bus_id is not None
    assert gpu.pci_bus_id.upper() == device.pci_bus_id.upper()
    by_place = open_gpu("unknown", device.pci_bus_id)
    assert isinstance(by_place, NvmlGpu)
    with by_place:
        assert by_place.uuid == gpu.uuid
    assert device.device_uuid in all_compute_pids()


def test_the_record_tells_what_the_card_can_do(device: Device, gpu: NvmlGpu) -> None:
    limits = gpu.limits()
    full = with_limits(device)
    print(full, limits)
    assert re.fullmatch(r"\d+\.\d+", full.compute_capability or "")
    assert full.warp_size == 32
    assert full.max_constant_buffer_bytes == 65_536
    assert device_class_of(full).max_constant_buffer_bytes == 65_536
    assert (full.registers_per_unit or 0) >= 32_768
    assert (full.local_memory_per_unit_bytes or 0) >= full.local_memory_bytes
    assert 1024 <= (full.max_work_items_per_unit or 0) <= 4096
    assert 8 <= (full.max_work_groups_per_unit or 0) <= 64
    assert (full.memory_bus_bits or 1) % 32 == 0
    assert full.has_ecc is not None
    assert limits.power_limit_w == full.power_limit_w
    assert 30 < (full.power_limit_w or 0) < 2000
    assert full.max_clock_mhz == pytest.approx(limits.max_sm_clock_mhz, rel=0.02)
    assert full.max_memory_clock_mhz == pytest.approx(limits.max_memory_clock_mhz, rel=0.02)


def test_a_poll_under_load_is_plausible(tried: TriedDevice, device: Device, gpu: NvmlGpu) -> None:
    most_mhz = gpu.limits().max_sm_clock_mhz
    assert most_mhz is not None
    monitor = open_monitor(device, poll_hz=10.0)
    assert monitor is not None
    with monitor, load(tried):
        start_s = time.monotonic()
        time.sleep(1.5)
        end_s = time.monotonic()
        found = monitor.between(start_s, end_s)
        inside = [one for one in monitor.readings() if start_s <= one.at_s <= end_s]
        moment = monitor.between(end_s - 0.6, end_s - 0.599)  # a launch config's, between polls
    print(found, *inside, sep="\n")
    assert 12 <= len(inside) <= 17
    assert all(None not in (one.power_w, one.memory_clock_mhz, one.busy_share) for one in inside)
    assert not any(one.is_idle for one in inside)
    assert max(one.busy_share or 0 for one in inside) > 0.5
    assert found.sm_clock_mhz is not None
    assert 0.3 * most_mhz < found.sm_clock_mhz <= most_mhz
    assert found.temperature_c is not None
    assert 15 < found.temperature_c < 100
    assert found.throttled is not None
    assert None not in (moment.sm_clock_mhz, moment.temperature_c, moment.throttled)


def test_a_resting_card_is_not_throttled(device: Device, gpu: NvmlGpu) -> None:
    time.sleep(5)
    monitor = open_monitor(device, poll_hz=20.0)
    assert monitor is not None
    with monitor:
        time.sleep(0.5)
        latest = monitor.latest()
        found = monitor.between(time.monotonic() - 0.4, time.monotonic())
    print(latest, found)
    assert isinstance(latest, Reading)
    assert found.throttled is not True
    assert found.temperature_c is not None


def test_a_sound_card_is_healthy(gpu: NvmlGpu) -> None:
    health = gpu.health()
    print(health)
    assert health.problems == ()


def test_who_computes_on_the_card(tried: TriedDevice, gpu: NvmlGpu) -> None:
    before = {one.pid for one in gpu.compute_processes() or ()}
    with stranger(tried) as pid:
        found = gpu.compute_processes()
        assert found is not None
        new = {one.pid for one in found} - before
        print("before", before, "now", found, "stranger", pid)
        if not new:
            pytest.skip("NVML shows no processes in this container: only the lock protects here")
        if pid in new:
            assert pid in {one.pid for one in strangers_among(found, frozenset())}
        else:  # NVML counts pids of another namespace: what was there before us is a stranger
            assert {one.pid for one in strangers_among(found, frozenset(new))} & new
    with load(tried) as pid:
        found = tuple(one for one in gpu.compute_processes() or () if one.pid not in before)
        assert strangers_among(found, frozenset()) == (), "a child of ours is no stranger"


def test_a_second_process_does_not_get_a_taken_gpu(
    tried: TriedDevice, device: Device, tmp_path: Path
) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    wanted = Collect(corpus, tmp_path / "data", tried.ref.selector, FAST)
    with gpu_lock(device, "/data/elsewhere"):
        refused = wanted.run()
    assert refused.returncode == Exit.NO_DEVICE, refused.stderr
    assert f"pid {os.getpid()}" in refused.stderr
    assert "/data/elsewhere" in refused.stderr
    assert not wanted.out.exists()
    done = wanted.run()
    assert done.returncode == 0, done.stderr
    assert owner_of(device) is None
    (row,) = open_dataset(wanted.out).devices().to_pylist()
    assert row["compute_capability"] == device.compute_capability
    assert row["power_limit_w"] == with_limits(device).power_limit_w


def test_a_busy_gpu_is_refused(tried: TriedDevice, gpu: NvmlGpu, tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    wanted = Collect(corpus, tmp_path / "data", tried.ref.selector, FAST)
    with stranger(tried):
        if not gpu.compute_processes():
            pytest.skip("NVML shows no processes in this container: only the lock protects here")
        refused = wanted.run()
        assert refused.returncode == Exit.NO_DEVICE, refused.stderr
        assert "limits.allow_busy_gpu=true" in refused.stderr
        borne = dataclasses.replace(
            wanted, options=(*FAST, "--set", "limits.allow_busy_gpu=true")
        ).run()
        assert borne.returncode == 0, borne.stderr
        assert "is shared with" in borne.stderr


def test_constant_buffers_are_planned_within_their_limit(
    tried: TriedDevice, tmp_path: Path
) -> None:
    """Before the plan knew the limit, 18 of 1,872 configs ended as out_of_memory."""
    corpus = tmp_path / "kernels"
    corpus.mkdir()
    for path in KERNELS.glob("*.cl"):
        if "__constant" in path.read_text():
            (corpus / path.name).write_text(path.read_text())
    options = ("--samples-per-kernel", "24", "--strategy", "simple")
    done = Collect(corpus, tmp_path / "data", tried.ref.selector, options).run(timeout_s=110)
    assert done.returncode == 0, done.stderr
    statuses = open_dataset(tmp_path / "data").status_counts()
    print(statuses)
    assert statuses["ok"] > 0
    assert "out_of_memory" not in statuses


def test_doctor_shows_the_card(device: Device, gpu: NvmlGpu) -> None:
    with gpu_lock(device, "/data/elsewhere"):
        done = run_llmperf("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["devices"]
    (shown,) = [one["gpu"] for one in found if one["selector"] == "cuda:0"]
    print(shown)
    assert shown["owner"]["out"] == "/data/elsewhere"
    assert shown["absent"] is None
    assert shown["reading"]["temperature_c"] > 15
    assert shown["limits"]["max_sm_clock_mhz"] > 500
    assert shown["health"]["problems"] == []
    text = run_llmperf("doctor").stdout
    assert " MHz, memory " in text
