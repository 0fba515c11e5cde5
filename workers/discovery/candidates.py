"""List where OpenCL may come from on this machine, before any runtime is tried.

Owns the three sources, and the environment variables that make a new process load each of them.
Each ICD file gets its own environment. So a broken vendor library cannot break the other runtimes,
and two PoCLs, which share one platform name, cannot be confused.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SYSTEM_VENDORS_FOLDER = Path("/etc/OpenCL/vendors")
INTEL_PACKAGES = ("intel-opencl-rt", "intel-cmplr-lib-rt")
POCL_VARIABLE = "LLMPERF_POCL_ICD"
"""Environment variable: an ICD file to use in place of the PoCL wheel's; empty: use neither."""

_LOADER_VARIABLE = "OCL_ICD_VENDORS"


class Source(StrEnum):
    """Where an OpenCL runtime comes from, in the order in which CPU devices are preferred."""

    SYSTEM_ICD = "system ICD"
    PIP_POCL = "pip PoCL"
    INTEL_RUNTIME = "Intel runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One environment in which OpenCL devices may be found.

    ``known_cpu_only``: do not try a CPU that is newer than the runtime's compiler
    (``cpu_model.py``).
    """

    source: Source
    environment: Mapping[str, str] = field(default_factory=dict)
    known_cpu_only: bool = False

    def may_have(self, selector: str) -> bool:
        """Whether ``--device selector`` may mean a device of this runtime, by its file's name."""
        library = self._library_name()
        is_gpu_only = "nvidia" in library
        is_pocl, is_intel = "pocl" in library, "intel" in library
        if selector.startswith("cuda"):
            return self.source is Source.SYSTEM_ICD and not (is_pocl or is_intel)
        if selector == "pocl":
            return not (is_gpu_only or is_intel)
        if selector == "cpu":
            return not is_gpu_only
        return True

    def _library_name(self) -> str:
        file = Path(self.environment[_LOADER_VARIABLE])
        if file.suffix == ".icd":
            try:
                return Path(file.read_text(encoding="utf-8", errors="replace").strip()).name.lower()
            except OSError:
                return ""
        return file.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentSource:
    """A source that is not on this machine, the reason, and how to install it."""

    source: Source
    reason: str
    mend: str


Candidates = tuple[tuple[Candidate, ...], tuple[AbsentSource, ...]]
"""The runtimes worth trying, and the sources that are absent."""


def candidates(
    *,
    prefix: Path = Path(sys.prefix),
    environ: Mapping[str, str] = os.environ,
    vendors_folder: Path = SYSTEM_VENDORS_FOLDER,
) -> Candidates:
    """Return the environments worth trying, and the sources that are absent.

    Args:
        prefix: the virtual environment; Intel's runtime is in its ``lib`` folder.
        environ: ``OCL_ICD_VENDORS`` replaces ``vendors_folder``, and ``LLMPERF_POCL_ICD`` the
            PoCL wheel.
        vendors_folder: where the system registers its runtimes.
    """
    package = _pyopencl_folder()
    if package is None:
        mend = 'pip install "llmperf[pocl]"'
        return (), tuple(
            AbsentSource(source=source, reason="pyopencl is not installed", mend=mend)
            for source in Source
        )
    found: list[Candidate] = []
    absent: list[AbsentSource] = []
    folder = Path(environ.get(_LOADER_VARIABLE) or vendors_folder)
    icd_files = sorted(folder.glob("*.icd")) if folder.is_dir() else [folder]
    icd_files = [file for file in icd_files if file.exists()]
    found += [_candidate(Source.SYSTEM_ICD, file) for file in icd_files]
    if not icd_files:
        absent.append(
            AbsentSource(
                source=Source.SYSTEM_ICD,
                reason=f"no *.icd file in {folder}",
                mend="apt-get install pocl-opencl-icd, or the GPU vendor's driver",
            )
        )
    given = environ.get(POCL_VARIABLE)
    pip_icd = package / ".libs" / "pocl.icd" if given is None else Path(given)
    if given == "":
        mend = f"unset {POCL_VARIABLE}"
        reason = f"switched off by an empty {POCL_VARIABLE}"
        absent.append(AbsentSource(source=Source.PIP_POCL, reason=reason, mend=mend))
    elif pip_icd.exists():
        found.append(_candidate(Source.PIP_POCL, pip_icd, known_cpu_only=given is None))
    else:
        reason = f"{pip_icd} does not exist"
        mend = 'pip install "llmperf[pocl]"'
        absent.append(AbsentSource(source=Source.PIP_POCL, reason=reason, mend=mend))
    intel = prefix / "lib" / "libintelocl.so"
    if intel.exists():
        found.append(_intel_candidate(intel, environ))
    else:
        mend = "python -m workers.discovery.provide, or pip install " + " ".join(INTEL_PACKAGES)
        reason = f"{intel} does not exist"
        absent.append(AbsentSource(source=Source.INTEL_RUNTIME, reason=reason, mend=mend))
    return tuple(found), tuple(absent)


def _candidate(source: Source, icd_file: Path, *, known_cpu_only: bool = False) -> Candidate:
    environment = {_LOADER_VARIABLE: str(icd_file)}
    return Candidate(source=source, environment=environment, known_cpu_only=known_cpu_only)


def _intel_candidate(library: Path, environ: Mapping[str, str]) -> Candidate:
    """Return a candidate that names the library: Intel's .icd files hold a placeholder path."""
    folders = [str(library.parent), environ.get("LD_LIBRARY_PATH", "")]
    return Candidate(
        source=Source.INTEL_RUNTIME,
        environment={
            _LOADER_VARIABLE: str(library),
            "LD_LIBRARY_PATH": os.pathsep.join(folder for folder in folders if folder),
        },
    )


def _pyopencl_folder() -> Path | None:
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent
