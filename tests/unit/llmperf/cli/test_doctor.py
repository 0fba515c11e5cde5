"""What ``doctor`` says of an NVIDIA GPU, over the real ``pynvml`` with answers in the driver's place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf.cli import doctor
from tests.support.factories.dataset_factory import make_device
from tests.support.factories.fake_nvml import GPU_IS_LOST, UUID, FakeCard, driver_with
from workers.device.interface import DeviceRef
from workers.device.nvidia.gpu_lock import gpu_lock
from workers.device.nvidia.gpu_state import GpuState, gpu_state
from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE
from workers.device.nvidia.nvml import INSTALL, NvmlAbsent
from workers.discovery.candidates import Source
from workers.discovery.find import DeviceReport, TriedDevice

GPU = replace(
    make_device(), name="NVIDIA H200", platform="NVIDIA CUDA", device_uuid=UUID.removeprefix("GPU-")
)
REPORT = DeviceReport(
    devices=(
        TriedDevice(
            ref=DeviceRef(selector="cuda:0", platform="NVIDIA CUDA", name="NVIDIA H200"),
            device=GPU,
            usable=True,
            reason="",
            source=Source.SYSTEM_ICD,
        ),
    ),
    absent=(),
)


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(tmp_path))


def state_of(card: FakeCard) -> GpuState:
    pynvml = pytest.importorskip("pynvml", reason=f"nvidia-ml-py is not installed: {INSTALL}")
    with driver_with(pynvml, card):
        state = gpu_state(GPU)
    assert state is not None
    return state


def told(state: GpuState | None, capsys: pytest.CaptureFixture[str]) -> str:
    doctor._tell(REPORT, [state], {}, None)
    return " ".join(capsys.readouterr().out.split())


def test_other_devices_have_no_state(capsys):
    assert gpu_state(make_device()) is None
    text = told(None, capsys)
    assert "class replay extras work columns" in text
    assert text.endswith(
        "no CPU OpenCL device is usable; `llmperf collect` leaves these columns empty"
    )


def test_a_card_at_work(capsys):
    with gpu_lock(GPU, "/data/run1"):
        state = state_of(FakeCard(reasons=0x44, pids=(41,)))
    text = told(state, capsys)
    assert "now 1,905 of 1,980 MHz, memory 3,201 of 3,201 MHz, 61 °C, 512 of 700 W" in text
    assert "throttled: software_power_cap, hardware_thermal" in text
    assert "computing on it: pid 41, 1 MiB" in text
    assert "owned by pid " in text
    assert "at work for /data/run1" in text
    assert "healthy" not in text


def test_a_card_at_rest_and_one_that_is_gone(capsys):
    assert "no process computes on this device" in told(state_of(FakeCard(reasons=0x1)), capsys)
    lost = state_of(FakeCard(errors={"nvmlDeviceGetUtilizationRates": GPU_IS_LOST}))
    assert "NOT healthy: the GPU does not answer: GPU is lost" in told(lost, capsys)


def test_without_nvml_one_line_says_so(capsys):
    absent = NvmlAbsent(reason="nvidia-ml-py is not installed", mend=INSTALL)
    text = told(GpuState(owner=None, absent=absent), capsys)
    assert (
        "processes are unknown: nvidia-ml-py is not installed to mend: pip install nvidia-ml-py"
        in text
    )


def test_the_document():
    state = state_of(FakeCard(reasons=0x44, pids=(41,)))
    document = json.loads(json.dumps(doctor._document(REPORT, [state], {}, None)))
    gpu = document["devices"][0]["gpu"]
    assert gpu["reading"] == {
        "sm_clock_mhz": 1905.0, "memory_clock_mhz": 3201.0, "temperature_c": 61.0, "power_w": 512.345,
        "reasons": 0x44, "busy_share": 0.97, "idle": False,
    }  # fmt: skip
    assert gpu["processes"] == [{"pid": 41, "used_memory_bytes": 2**20}]
    assert gpu["throttle_reasons"] == ["software_power_cap", "hardware_thermal"]
    assert gpu["health"] == {"problems": [], "uncorrected_ecc_errors": 0}
    assert gpu["owner"] is gpu["absent"] is None
    assert document["work"] == {"counted_on": None}
    assert doctor._document(REPORT, [None], {}, None)["devices"][0]["gpu"] is None
