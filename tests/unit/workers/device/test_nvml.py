"""The NVML door: the real ``pynvml`` over a driver that is not there, or over answers in its place."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.factories.dataset_factory import make_device
from tests.support.factories.fake_nvml import (
    GPU_IS_LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    PCI,
    UUID,
    FakeCard,
    driver_with,
)
from workers.collect.joining import with_limits
from workers.device.nvidia.monitor import ClockReason, Reading
from workers.device.nvidia.nvml import (
    INSTALL,
    NvmlAbsent,
    absence,
    all_compute_pids,
    open_gpu,
    open_gpu_of,
    open_monitor,
    problems_of,
)
from workers.device.nvidia.nvml_gpu import ComputeProcess, GpuLimits, NvmlGpu

REPOSITORY = Path(__file__).resolve().parents[4]
BARE = UUID.removeprefix("GPU-")
NVIDIA = replace(make_device(), platform="NVIDIA CUDA", device_uuid=BARE)
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("pynvml") is None, reason=f"nvidia-ml-py is not installed: {INSTALL}"
)


@pytest.fixture
def pynvml() -> ModuleType:
    return pytest.importorskip("pynvml", reason=f"nvidia-ml-py is not installed: {INSTALL}")


def opened(found: NvmlGpu | NvmlAbsent) -> NvmlGpu:
    assert isinstance(found, NvmlGpu), found
    return found


def test_without_the_library_everything_is_absent_and_says_what_to_install(tmp_path: Path):
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError('blocked', name='pynvml')\n")
    program = f"""
from workers.device.nvidia.nvml import absence, all_compute_pids, open_gpu
for found in (absence(), open_gpu({BARE!r}), all_compute_pids()):
    assert (found.reason, found.mend) == ("nvidia-ml-py is not installed", {INSTALL!r}), found
"""
    folders = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": folders},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@needs_library
def test_a_library_without_driver_is_absent_for_a_reason():
    found = absence()
    if found is None:
        pytest.skip("there is a driver here")
    assert found.reason.startswith("NVML does not start: ")
    assert "NVML Shared Library Not Found" in found.reason or "Driver" in found.reason
    assert open_gpu(BARE) == all_compute_pids() == found


def test_other_devices_are_not_asked_about():
    assert open_gpu_of(make_device()) is None
    assert open_monitor(make_device(), poll_hz=10.0) is None
    assert open_monitor(NVIDIA, poll_hz=0) is None
    assert with_limits(make_device()) == make_device()


def test_a_card_is_found_by_uuid_or_by_its_place(pynvml):
    with driver_with(pynvml, FakeCard()):
        for name, place in ((BARE, None), (UUID, None), (BARE.upper(), None), ("?", PCI), (UUID[:-1] + "f", PCI)):  # fmt: skip
            with opened(open_gpu(name, place)) as gpu:
                assert (gpu.uuid, gpu.pci_bus_id) == (UUID, PCI)
        absent = open_gpu(UUID[:-1] + "f", "00000000:2B:00.0")
        assert isinstance(absent, NvmlAbsent)
        assert "00000000:2B:00.0: Not Found" in absent.reason
        absent = open_gpu("416ce294ddb9366ff7e6")
        assert isinstance(absent, NvmlAbsent)
        assert "neither UUID" in absent.reason


def test_a_poll(pynvml):
    with driver_with(pynvml, FakeCard(reasons=0x24)), opened(open_gpu(BARE)) as gpu:
        assert gpu.read(5.0) == Reading(
            at_s=5.0, sm_clock_mhz=1905.0, memory_clock_mhz=3201.0, temperature_c=61.0, power_w=512.345,
            reasons=ClockReason.SOFTWARE_POWER_CAP | ClockReason.SOFTWARE_THERMAL, busy_share=0.97,
        )  # fmt: skip
        assert gpu.limits() == GpuLimits(
            max_sm_clock_mhz=1980.0, max_memory_clock_mhz=3201.0, power_limit_w=700.0
        )


def test_what_a_card_or_its_driver_lacks_is_none_and_told_once(pynvml, caplog):
    card = FakeCard(
        errors={"nvmlDeviceGetPowerUsage": NOT_SUPPORTED, "nvmlDeviceGetClockInfo": GPU_IS_LOST},
        lacks=frozenset({"nvmlDeviceGetUtilizationRates"}),
    )
    with (
        caplog.at_level(logging.INFO),
        driver_with(pynvml, card),
        opened(open_gpu(BARE)) as gpu,
    ):
        first, second = gpu.read(1.0), gpu.read(2.0)
    assert first == Reading(at_s=1.0, temperature_c=61.0, reasons=ClockReason(0))
    assert second == replace(first, at_s=2.0)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        ("WARNING", "NVML: nvmlDeviceGetClockInfo: GPU is lost"),
        ("WARNING", "NVML: nvmlDeviceGetClockInfo: GPU is lost"),  # of SM and memory
        ("INFO", "NVML: nvmlDeviceGetPowerUsage: Not Supported"),
        ("INFO", "NVML: nvmlDeviceGetUtilizationRates: Function Not Found"),
    ]


def test_older_names_are_asked_where_the_newer_are_missing(pynvml):
    lacks = {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"}
    card = FakeCard(reasons=0x8, lacks=frozenset(lacks))
    with driver_with(pynvml, card), opened(open_gpu(BARE)) as gpu:
        for _ in range(2):
            reading = gpu.read(0.0)
            assert (reading.temperature_c, reading.reasons) == (61.0, ClockReason.HARDWARE_SLOWDOWN)


def test_compute_processes(pynvml):
    with driver_with(pynvml, FakeCard(pids=(41, 42))), opened(open_gpu(BARE)) as gpu:
        assert gpu.compute_processes() == (
            ComputeProcess(pid=41, used_memory_bytes=2**20),
            ComputeProcess(pid=42, used_memory_bytes=2**20),
        )
        assert all_compute_pids() == {BARE: frozenset({41, 42})}
    with driver_with(pynvml, FakeCard()), opened(open_gpu(BARE)) as gpu:
        assert gpu.compute_processes() == ()
    lacks = frozenset({"nvmlDeviceGetComputeRunningProcesses_v3"})
    with driver_with(pynvml, FakeCard(lacks=lacks)), opened(open_gpu(BARE)) as gpu:
        assert gpu.compute_processes() is None


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (FakeCard(), None),
        (FakeCard(ecc_errors=3), None),
        (FakeCard(errors={"nvmlDeviceGetRetiredPagesPendingStatus": NOT_SUPPORTED}), None),
        (FakeCard(errors={"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED}), None),
        (FakeCard(remapped=(4, 1, 0, 0)), None),
        (FakeCard(retired_pending=1), "pages wait to be retired"),
        (FakeCard(remapped=(0, 1, 1, 0)), "rows wait to be remapped"),
        (FakeCard(remapped=(0, 1, 0, 1)), "could not be"),
        (FakeCard(recovery_action=1), r"recovery \(action 1"),
        (FakeCard(errors={"nvmlDeviceGetUtilizationRates": GPU_IS_LOST}), "GPU is lost"),
    ],
)
def test_health(pynvml, card, words):
    with driver_with(pynvml, card), opened(open_gpu(BARE)) as gpu:
        health = gpu.health()
        if words is None:
            assert health.problems == ()
            assert health.uncorrected_ecc_errors == card.ecc_errors
        else:
            (problem,) = health.problems
            assert re.search(words, problem)


def test_problems_of_a_device(pynvml):
    with driver_with(pynvml, FakeCard()):
        assert problems_of(NVIDIA) == ()
    with driver_with(pynvml, FakeCard(errors={"nvmlDeviceGetUtilizationRates": GPU_IS_LOST})):
        (problem,) = problems_of(NVIDIA)
        assert "lost" in problem
        assert problems_of(make_device()) == (), "not NVIDIA's: NVML is not asked"


@pytest.mark.parametrize(
    ("by_uuid", "by_place", "place", "is_lost"),
    [
        (GPU_IS_LOST, GPU_IS_LOST, PCI, True),
        (NOT_FOUND, GPU_IS_LOST, PCI, True),
        (GPU_IS_LOST, None, PCI, False),  # another card is lost, this one is found
        (GPU_IS_LOST, NOT_FOUND, PCI, False),
        (NOT_FOUND, NOT_FOUND, PCI, False),
        (GPU_IS_LOST, None, None, False),  # which one is not known
    ],
)
def test_a_card_that_has_fallen_off_the_bus_is_a_problem_and_a_lost_neighbour_is_none(
    pynvml, by_uuid, by_place, place, is_lost
):
    errors = {"nvmlDeviceGetHandleByUUID": by_uuid}
    if by_place is not None:
        errors["nvmlDeviceGetHandleByPciBusId_v2"] = by_place
    with driver_with(pynvml, FakeCard(errors=errors)) as driver:
        found = problems_of(replace(NVIDIA, pci_bus_id=place))
        assert [("does not answer" in problem) for problem in found] == [True] * is_lost
        assert driver.num_inits == 0, "each start of the library has its end"


def test_a_monitor_over_the_real_bindings(pynvml):
    card = FakeCard(reasons=0x4)
    with driver_with(pynvml, card):
        monitor = open_monitor(NVIDIA, poll_hz=200.0)
        assert monitor is not None
        with monitor:
            deadline_s = time.monotonic() + 10
            while (latest := monitor.latest()) is None:
                assert time.monotonic() < deadline_s
                time.sleep(0.005)
            found = monitor.between(latest.at_s, latest.at_s)
        assert (found.sm_clock_mhz, found.temperature_c, found.throttled) == (1905.0, 61.0, True)


def test_a_monitor_without_nvml_is_none_and_warns(pynvml, caplog):
    with driver_with(pynvml, FakeCard()):
        other = replace(NVIDIA, device_uuid=BARE[:-1] + "f")
        assert open_monitor(other, poll_hz=10.0) is None
    assert "clocks and temperature will be null" in caplog.text


def test_the_power_limit_joins_the_record(pynvml):
    with driver_with(pynvml, FakeCard()):
        assert with_limits(NVIDIA) == replace(NVIDIA, power_limit_w=700.0)
