"""Which devices are usable: each source present and absent, in real child processes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmperf_common.records import Device
from workers.device.interface import DeviceRef
from workers.device.replay_file import ReplayDevice
from workers.discovery.candidates import AbsentSource, Candidate, Source, candidates
from workers.discovery.find import DeviceReport, NoDevice, choose, try_all_runtimes
from workers.discovery.opening import open_session
from workers.discovery.runtime_trial import TriedDevice, try_runtime

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def report() -> DeviceReport:
    return try_all_runtimes()


def absent_sources(found: tuple[tuple[Candidate, ...], tuple[AbsentSource, ...]]) -> set[Source]:
    return {absent.source for absent in found[1]}


def test_this_machine_has_a_usable_cpu_device(report: DeviceReport) -> None:
    chosen = choose("cpu", report)
    assert isinstance(chosen, DeviceRef), report
    tried = next(tried for tried in report.devices if tried.ref == chosen)
    assert tried.device is not None
    assert tried.device.name == chosen.name
    assert tried.reason == ""
    assert choose("auto", report) == chosen or choose("auto", report).selector.startswith("cuda")  # type: ignore[union-attr]


def test_system_icds_absent(tmp_path: Path) -> None:
    found = candidates(environ={}, vendors_folder=tmp_path)
    assert Source.SYSTEM_ICD in absent_sources(found)
    assert all(candidate.source is not Source.SYSTEM_ICD for candidate in found[0])
    by_variable = candidates(environ={"OCL_ICD_VENDORS": str(tmp_path)})
    assert Source.SYSTEM_ICD in absent_sources(by_variable)


def test_intel_runtime_absent_and_present(tmp_path: Path) -> None:
    assert Source.INTEL_RUNTIME in absent_sources(candidates(prefix=tmp_path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libintelocl.so").touch()
    found, _ = candidates(prefix=tmp_path, environ={"LD_LIBRARY_PATH": "/x"})
    intel = next(candidate for candidate in found if candidate.source is Source.INTEL_RUNTIME)
    assert intel.environment["LD_LIBRARY_PATH"] == f"{tmp_path}/lib{os.pathsep}/x"


def test_each_icd_file_is_an_environment_of_its_own(tmp_path: Path) -> None:
    for name in ("a.icd", "b.icd", "notes.txt"):
        (tmp_path / name).write_text("libnone.so\n")
    found, _ = candidates(environ={}, vendors_folder=tmp_path)
    system = [candidate for candidate in found if candidate.source is Source.SYSTEM_ICD]
    assert [Path(c.environment["OCL_ICD_VENDORS"]).name for c in system] == ["a.icd", "b.icd"]


def test_a_runtime_that_does_not_load_gives_its_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.icd"
    broken.write_text("libthere-is-no-such-library.so\n")
    candidate = Candidate(source=Source.SYSTEM_ICD, environment={"OCL_ICD_VENDORS": str(broken)})
    found = try_all_runtimes(((candidate,), ()))
    assert found.devices == ()
    assert [absent.source for absent in found.absent] == [Source.SYSTEM_ICD]
    assert "broken.icd" in found.absent[0].reason
    none = choose("auto", found)
    assert isinstance(none, NoDevice)
    assert "broken.icd" in none.message()


def test_a_trial_that_does_not_answer_is_ended() -> None:
    present, _ = candidates()
    found = try_runtime(present[0], wanted="", timeout_s=0.01)
    assert found.absent is not None
    assert not found.ended_itself
    assert "no answer within 0.01 s" in found.absent.reason


def test_provide_says_what_it_chose(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.discovery.provide"], capture_output=True, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "chosen: --device" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_without_pyopencl_the_reason_names_the_extra(tmp_path: Path) -> None:
    """A bare interpreter (-S hides site-packages) stands for an installation without the extra."""
    code = "from workers.discovery.candidates import candidates; print(candidates())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('pip install "llmperf[pocl]"') == len(Source)
    assert "pyopencl is not installed" in done.stdout


def tried(selector: str, source: Source, *, usable: bool = True) -> TriedDevice:
    device: Device = dataclasses.replace(ReplayDevice().record(), name=selector)
    ref = DeviceRef(selector=selector, platform="p", name=f"{selector} of {source}")
    return TriedDevice(
        ref=ref, device=device if usable else None, usable=usable,
        reason="" if usable else "its trial died", source=source,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("auto", "cuda:1 of system ICD"),
        ("cuda:1", "cuda:1 of system ICD"),
        ("cuda", None),
        ("cuda:7", None),
        ("cpu", "pocl of pip PoCL"),
        ("pocl", "pocl of pip PoCL"),
    ],
)
def test_the_order_of_choice(selector: str, expected: str | None) -> None:
    devices = (
        tried("cpu", Source.INTEL_RUNTIME),
        tried("pocl", Source.PIP_POCL),
        tried("pocl", Source.SYSTEM_ICD, usable=False),
        tried("cuda:1", Source.SYSTEM_ICD),
        tried("cuda:0", Source.SYSTEM_ICD, usable=False),
    )
    chosen = choose(selector, DeviceReport(devices=devices, absent=()))
    if expected is None:
        assert isinstance(chosen, NoDevice)
        assert "its trial died" in chosen.message()
    else:
        assert isinstance(chosen, DeviceRef)
        assert chosen.name == expected


@pytest.mark.parametrize("selector", ["", "gpu", "cuda:x", "cuda:", "opencl"])
def test_an_unknown_selector_lists_the_known_ones(selector: str) -> None:
    with pytest.raises(ValueError, match=r"cuda\[:N\]"):
        choose(selector, DeviceReport(devices=(), absent=()))


def test_a_device_that_is_not_here_is_named_with_those_that_are(report: DeviceReport) -> None:
    chosen = choose("cpu", report)
    assert isinstance(chosen, DeviceRef)
    with pytest.raises(LookupError, match="no device 'H1000'"):
        open_session(dataclasses.replace(chosen, name="H1000"))
