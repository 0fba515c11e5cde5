"""Find the usable devices of this machine and the one that a selector means.

Decides which runtimes are tried for a selector, and which of their devices is chosen.
``runtime_trial.py`` tries a runtime; ``trial_verdicts.py`` remembers the result; ``opening.py``
opens a device.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.store.files.filesystem import StoreError
from workers.device.interface import DeviceRef
from workers.device.replay import replay_ref
from workers.device.selectors import is_replay
from workers.discovery.candidates import AbsentSource, Candidate, Candidates, Source, candidates
from workers.discovery.runtime_trial import (
    PROBE_TIMEOUT_S,
    RuntimeVerdict,
    Tell,
    TriedDevice,
    try_runtime,
)
from workers.discovery.trial_verdicts import VerdictFile, default_folder
from workers.sandbox.scratch import check_space

SELECTORS = "auto, pocl, cpu, cuda[:N] or replay:FILE"
_CPU_SELECTORS = ("pocl", "cpu")


def _silent(_line: str) -> None:
    """Write nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """All devices that were found, usable or not, and the sources without devices."""

    devices: tuple[TriedDevice, ...]
    absent: tuple[AbsentSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDevice:
    """No device matches a selector: what was tried, why it failed, and how to mend it."""

    selector: str
    reasons: tuple[str, ...]
    mend: tuple[str, ...]

    def message(self) -> str:
        """Return the error message for the user."""
        lines = [f"no usable device for --device {self.selector}"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  to mend: {mend}" for mend in self.mend]
        return "\n".join(lines)


def try_all_runtimes(
    found: Candidates | None = None, *, again: bool = False, tell: Tell = _silent
) -> DeviceReport:
    """Try every runtime at the same time, each in its own child process.

    Args:
        found: the runtimes and the absent sources; None: look them up.
        again: also try runtimes whose verdict is remembered.
        tell: called with a line before each trial.
    """
    present, absent = candidates() if found is None else found
    if not present:
        return DeviceReport(devices=(), absent=absent)
    with ThreadPoolExecutor(max_workers=len(present)) as pool:
        verdicts = list(pool.map(lambda one: _verdict(one, "", again, tell), present))
    return _report(verdicts, absent)


def try_runtimes_for(selector: str, *, tell: Tell = _silent) -> DeviceReport:
    """Try the runtimes that ``selector`` may mean, one by one, up to the first usable device.

    Args:
        selector: as for ``choose``; ``cuda`` alone tries every GPU.
        tell: called with a line before each trial.
    """
    present, absent = candidates()
    verdicts: list[RuntimeVerdict] = []
    left_out: list[AbsentSource] = []
    for candidate in sorted(present, key=lambda one: list(Source).index(one.source)):
        if _is_settled(selector, verdicts, candidate.source):
            break
        if candidate.may_have(selector):
            verdicts.append(_verdict(candidate, selector, again=False, tell=tell))
            continue
        reason = f"not tried: it has no device that --device {selector} can mean"
        mend = "llmperf doctor lists the devices of every runtime"
        left_out.append(AbsentSource(source=candidate.source, reason=reason, mend=mend))
    return _report(verdicts, (*absent, *left_out))


def choose(
    selector: str, report: DeviceReport | None = None, *, tell: Tell = _silent
) -> DeviceRef | NoDevice:
    """Return the device that ``--device selector`` means.

    Args:
        selector: ``auto`` (the first usable NVIDIA GPU, else a CPU: system ICD, pip PoCL, Intel's
            runtime), ``pocl``, ``cpu``, ``cuda``, ``cuda:N`` or ``replay:FILE``.
        report: the devices found; None: try the runtimes now. Not needed for replay.
        tell: called with a line before each trial of a runtime.

    Raises:
        ValueError: Not a selector, or a bad replay file (the message names file and key).
    """
    if is_replay(selector):
        return replay_ref(selector)
    match = re.fullmatch(r"(auto|pocl|cpu|cuda(?::\d+)?)", selector)
    if match is None:
        raise ValueError(f"--device {selector!r}: must be {SELECTORS}")
    if report is None:
        report = try_runtimes_for("cuda:0" if selector == "cuda" else selector, tell=tell)
    for tried in _in_order(selector, report.devices):
        if tried.usable:
            return tried.ref
    return _no_device(selector, report)


def _in_order(selector: str, devices: Sequence[TriedDevice]) -> list[TriedDevice]:
    """Return the devices that the selector may mean, the preferred ones first."""
    order = list(Source)
    by_source = sorted(devices, key=lambda tried: order.index(tried.source))
    gpus = [p for p in by_source if p.ref.selector.startswith("cuda")]
    gpus.sort(key=lambda tried: int(tried.ref.selector.partition(":")[2]))
    cpus = [p for p in by_source if p.ref.selector in _CPU_SELECTORS]
    if selector == "auto":
        return gpus + cpus
    if selector == "cpu":
        return cpus
    if selector == "pocl":
        return [tried for tried in cpus if tried.ref.selector == "pocl"]
    wanted = selector if ":" in selector else f"{selector}:0"
    return [tried for tried in gpus if tried.ref.selector == wanted]


def _no_device(selector: str, report: DeviceReport) -> NoDevice:
    reasons = [
        f"{tried.source}: {tried.ref.platform}: {tried.ref.name}: "
        + ("usable, but not what --device asks for" if tried.usable else tried.reason)
        for tried in report.devices
    ]
    reasons += [f"{absent.source}: {absent.reason}" for absent in report.absent]
    if selector.startswith("cuda"):
        mend: tuple[str, ...] = (
            "write libnvidia-opencl.so.1 (find it with ldconfig -p) into "
            "/etc/OpenCL/vendors/nvidia.icd; CUDA_VISIBLE_DEVICES must not hide the GPU",
        )
    else:
        mend = tuple(dict.fromkeys(absent.mend for absent in report.absent))
    return NoDevice(selector=selector, reasons=tuple(reasons), mend=mend)


def _verdict(candidate: Candidate, selector: str, again: bool, tell: Tell) -> RuntimeVerdict:
    """Return the remembered verdict on a runtime; if there is none, try the runtime.

    Other processes wait for the verdict meanwhile. A full disk makes compilers crash. So, if the
    disk is full, nothing is tried and nothing is remembered.
    """
    try:
        check_space(Path(tempfile.gettempdir()))
    except (StoreError, FileNotFoundError) as error:  # the latter: no temporary folder is usable
        absent = AbsentSource(
            source=candidate.source, reason=str(error), mend="free some space, or set TMPDIR"
        )
        return RuntimeVerdict(devices=(), absent=absent, ended_itself=False)
    remembered = VerdictFile(candidate, default_folder())
    known = None if again else remembered.read()
    if known is not None:
        return known
    what = f"{candidate.source} ({candidate.environment['OCL_ICD_VENDORS']})"
    with remembered.alone(lambda: tell(f"another process tries {what}; waiting for its verdict")):
        known = None if again else remembered.read()
        if known is not None:
            return known
        tell(f"trying {what}, at most {PROBE_TIMEOUT_S:g} s per device")
        verdict = try_runtime(candidate, wanted=selector)
        if not selector.startswith("cuda"):  # a trial for ``cuda`` leaves out other devices
            remembered.write(verdict)
    return verdict


def _is_settled(selector: str, verdicts: Sequence[RuntimeVerdict], following: Source) -> bool:
    """Return whether no runtime from source ``following`` on can change the selected device."""
    usable = [device for verdict in verdicts for device in verdict.devices if device.usable]
    found = _in_order(selector, usable)
    if not found or selector == "cuda":
        return False
    is_gpu = found[0].ref.selector.startswith("cuda")
    return selector != "auto" or is_gpu or following is not Source.SYSTEM_ICD


def _report(verdicts: Sequence[RuntimeVerdict], absent: Sequence[AbsentSource]) -> DeviceReport:
    return DeviceReport(
        devices=tuple(device for verdict in verdicts for device in verdict.devices),
        absent=(*absent, *(one.absent for one in verdicts if one.absent is not None)),
    )
