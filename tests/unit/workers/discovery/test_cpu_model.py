"""Which CPUs an old compiler does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.discovery.cpu_model import CpuModel, read_cpu_model, too_new_for

POCL_3 = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"


def amd(family: int, model: int) -> CpuModel:
    return CpuModel(vendor="AuthenticAMD", family=family, model=model, name="", description="")


@pytest.mark.parametrize(
    ("cpu", "version", "needs"),
    [
        (amd(25, 0x01), POCL_3, None),  # Zen 3, Milan
        (amd(25, 0x21), POCL_3, None),  # Zen 3, Vermeer
        (amd(25, 0x11), POCL_3, "Zen 4 needs LLVM 16"),  # Genoa
        (amd(25, 0x61), POCL_3, "Zen 4 needs LLVM 16"),  # Raphael
        (amd(25, 0xA0), POCL_3, "Zen 4 needs LLVM 16"),  # Bergamo
        (amd(26, 0x02), POCL_3, "Zen 5 needs LLVM 19"),  # Turin
        (amd(25, 0x11), "OpenCL 3.0 PoCL 5.0, LLVM 16.0.6", None),
        (amd(26, 0x02), "OpenCL 3.0 PoCL 6.0, LLVM 18.1.8", "Zen 5 needs LLVM 19"),
        (amd(26, 0x02), "OpenCL 3.0 LINUX", None),  # Intel's runtime says nothing of LLVM
    ],
)
def test_too_new(cpu: CpuModel, version: str, needs: str | None) -> None:
    reason = too_new_for(version, cpu)
    assert (reason is None) == (needs is None)
    assert needs is None or needs in str(reason)


def test_an_intel_cpu_is_tried() -> None:
    cpu = CpuModel(vendor="GenuineIntel", family=6, model=207, name="", description="")
    assert too_new_for(POCL_3, cpu) is None


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
        "model name\t: AMD EPYC\ncpu MHz\t\t: 2596.1\n\nprocessor\t: 1\nmodel\t\t: 99\n"
    )
    cpu = read_cpu_model(path)
    assert (cpu.vendor, cpu.family, cpu.model, cpu.name) == ("AuthenticAMD", 25, 17, "AMD EPYC")
    assert "MHz" not in cpu.description
    path.write_text("processor : 0\nBogoMIPS : 50.00\nCPU implementer : 0x41\nCPU part : 0xd40\n")
    arm = read_cpu_model(path)
    assert (arm.vendor, arm.family) == ("", 0)
    assert "CPU part=0xd40" in arm.description
    assert read_cpu_model(tmp_path / "none").description == ""
