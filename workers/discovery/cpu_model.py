"""Find which CPU this machine has, and whether a runtime's compiler knows it.

Owns the reading of ``/proc/cpuinfo``, and the table of CPUs with the first LLVM release for each. A
runtime with an older LLVM mistakes the CPU for another one; it then aborts, hangs or computes
wrongly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LLVM_VERSION = re.compile(r"\bLLVM (\d+)\.")
_CHANGING = ("cpu MHz", "bogomips", "processor", "core id", "apicid", "initial apicid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuModel:
    """The first processor of this machine, as Linux describes it.

    Attributes:
        vendor: such as ``AuthenticAMD`` or ``GenuineIntel``; "" if Linux names none.
        family: the vendor's family number, 0 if unknown.
        model: number within the family, 0 if unknown.
        name: product name, for display.
        description: every fact that does not change from second to second, for a hash.
    """

    vendor: str
    family: int
    model: int
    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """The CPUs of one generation, and the first LLVM release that generates code for them."""

    vendor: str
    family: int
    models: tuple[range, ...]
    first_llvm: int
    name: str


_GENERATIONS = (
    _Generation(
        vendor="AuthenticAMD",
        family=25,
        models=(range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0)),
        first_llvm=16,
        name="Zen 4",
    ),
    _Generation(
        vendor="AuthenticAMD", family=26, models=(range(0x100),), first_llvm=19, name="Zen 5"
    ),
)
"""From LLVM's ``Host.cpp`` and its release notes (znver4: 16.0, znver5: 19.1)."""


def read_cpu_model(path: Path = Path("/proc/cpuinfo")) -> CpuModel:
    """Return this machine's CPU; fields that the file does not give are "" or 0."""
    try:
        first = path.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    pairs = [line.partition(":")[::2] for line in first.splitlines()]
    facts = {key.strip(): value.strip() for key, value in pairs}
    return CpuModel(
        vendor=facts.get("vendor_id", ""),
        family=_number(facts.get("cpu family")),
        model=_number(facts.get("model")),
        name=facts.get("model name", ""),
        description="\n".join(f"{k}={v}" for k, v in facts.items() if k not in _CHANGING),
    )


def too_new_for(platform_version: str, cpu: CpuModel) -> str | None:
    """Return why a runtime's compiler does not know ``cpu``; None if it may know the CPU.

    Args:
        platform_version: the OpenCL platform's, such as ``OpenCL 3.0 PoCL 3.0 … LLVM 14.0.6``.
        cpu: the machine's CPU.

    >>> zen4 = CpuModel(vendor="AuthenticAMD", family=25, model=17, name="", description="")
    >>> too_new_for("OpenCL 3.0 PoCL 3.0-rc2, LLVM 14.0.6, SLEEF", zen4)
    'its compiler is LLVM 14, which does not know this CPU (Zen 4 needs LLVM 16)'
    >>> too_new_for("OpenCL 3.0 PoCL 5.0, LLVM 16.0.6", zen4)
    """
    match = _LLVM_VERSION.search(platform_version)
    if match is None:
        return None
    llvm = int(match[1])
    for generation in _GENERATIONS:
        is_meant = (cpu.vendor, cpu.family) == (generation.vendor, generation.family)
        if is_meant and any(cpu.model in models for models in generation.models):
            if llvm >= generation.first_llvm:
                return None
            needs = f"{generation.name} needs LLVM {generation.first_llvm}"
            return f"its compiler is LLVM {llvm}, which does not know this CPU ({needs})"
    return None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
