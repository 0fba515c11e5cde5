"""What is usable on this machine, which device a selector means, and the doors to it.

Owns the probing of candidate environments in child processes, the choice, and ``open_session`` and
``open_compiler``, which load a door only when it is asked for. Caches nothing: a probe costs seconds, a
wrong device costs the run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from llmperf_common.records import Device
from workers.device.candidates import AbsentSource, Candidate, Source, candidates
from workers.device.interface import Compiler, DeviceRef, Prober, Session
from workers.device.opencl_cache import use_private_cache
from workers.device.replay import SELECTOR_PREFIX, ReplayCompiler, ReplaySession, replay_ref

PROBE_TIMEOUT_S = 60.0
SELECTORS = "auto, pocl, cpu, cuda[:N] or replay:FILE"
_CPU_SELECTORS = ("pocl", "cpu")
_STDERR_TAIL_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice:
    """One OpenCL device and whether a probe build and launch passed on it.

    ``device`` is None and ``reason`` says why where it is not usable.
    """

    ref: DeviceRef
    device: Device | None
    usable: bool
    reason: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """Everything that was found: devices, usable or not, and the sources that gave none."""

    devices: tuple[ProbedDevice, ...]
    absent: tuple[AbsentSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDevice:
    """No device for a selector: what was tried, why it failed, how to mend it."""

    selector: str
    reasons: tuple[str, ...]
    mend: tuple[str, ...]

    def message(self) -> str:
        """Return the text for a user."""
        lines = [f"no usable device for --device {self.selector}"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  to mend: {mend}" for mend in self.mend]
        return "\n".join(lines)


def probe_all(
    found: tuple[tuple[Candidate, ...], tuple[AbsentSource, ...]] | None = None,
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> DeviceReport:
    """Try every candidate environment, side by side, each in a child of its own."""
    present, absent = candidates() if found is None else found
    if not present:
        return DeviceReport(devices=(), absent=absent)
    with ThreadPoolExecutor(max_workers=len(present)) as pool:
        results = list(pool.map(lambda candidate: _probe(candidate, timeout_s), present))
    devices: list[ProbedDevice] = []
    silent = list(absent)
    for result in results:
        if isinstance(result, AbsentSource):
            silent.append(result)
        else:
            devices += result
    return DeviceReport(devices=tuple(devices), absent=tuple(silent))


def choose(selector: str, report: DeviceReport | None = None) -> DeviceRef | NoDevice:
    """Return the device that ``--device selector`` means.

    Args:
        selector: ``auto`` (first usable NVIDIA GPU, else a CPU: system ICD, pip PoCL, Intel's runtime),
            ``pocl``, ``cpu``, ``cuda`` or ``cuda:N``, ``replay:FILE``.
        report: what was found; probed now where None. Not needed for replay.

    Raises:
        ValueError: The selector is none of these, or the replay file is bad (names file and key).
    """
    if selector.startswith(SELECTOR_PREFIX):
        return replay_ref(selector)
    match = re.fullmatch(r"(auto|pocl|cpu|cuda(?::\d+)?)", selector)
    if match is None:
        raise ValueError(f"--device {selector!r}: must be {SELECTORS}")
    report = probe_all() if report is None else report
    for probed in _in_order(selector, report.devices):
        if probed.usable:
            return probed.ref
    return _no_device(selector, report)


def open_session(ref: DeviceRef) -> Session:
    """Open the device in this process. LookupError if it is not here, ValueError on a bad replay file."""
    if ref.selector.startswith(SELECTOR_PREFIX):
        return ReplaySession(ref)
    _enter_environment(ref)
    from workers.device.opencl import OpenclSession  # noqa: PLC0415

    return OpenclSession(ref)


def open_compiler(ref: DeviceRef) -> Compiler:
    """Open the device's compiler in this process. Raises as ``open_session`` does."""
    if ref.selector.startswith(SELECTOR_PREFIX):
        return ReplayCompiler(ref)
    _enter_environment(ref)
    from workers.device.opencl import OpenclCompiler  # noqa: PLC0415

    return OpenclCompiler(ref)


def open_prober(ref: DeviceRef) -> Prober:
    """Open the device that ``ref`` names for probe launches, in this process.

    Raises:
        LookupError: The device is not there, or (replay) nothing can be launched on it.
    """
    if ref.selector.startswith(SELECTOR_PREFIX):
        raise LookupError("a replay device cannot probe")
    _enter_environment(ref)
    from workers.device.opencl_probe import OpenclProber  # noqa: PLC0415

    return OpenclProber(ref)


def _enter_environment(ref: DeviceRef) -> None:
    """Set what the OpenCL loader reads; a parent should have: LD_LIBRARY_PATH counts from exec only."""
    os.environ.update(ref.environment)
    use_private_cache()


def _in_order(selector: str, devices: Sequence[ProbedDevice]) -> list[ProbedDevice]:
    """Return the devices that the selector may mean, the preferred ones first."""
    order = list(Source)
    by_source = sorted(devices, key=lambda probed: order.index(probed.source))
    gpus = [p for p in by_source if p.ref.selector.startswith("cuda")]
    gpus.sort(key=lambda probed: int(probed.ref.selector.partition(":")[2]))
    cpus = [p for p in by_source if p.ref.selector in _CPU_SELECTORS]
    if selector == "auto":
        return gpus + cpus
    if selector == "cpu":
        return cpus
    if selector == "pocl":
        return [probed for probed in cpus if probed.ref.selector == "pocl"]
    wanted = selector if ":" in selector else f"{selector}:0"
    return [probed for probed in gpus if probed.ref.selector == wanted]


def _no_device(selector: str, report: DeviceReport) -> NoDevice:
    reasons = [
        f"{probed.source}: {probed.ref.platform}: {probed.ref.name}: "
        + ("usable, but not what was asked for" if probed.usable else probed.reason)
        for probed in report.devices
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


def _probe(candidate: Candidate, timeout_s: float) -> list[ProbedDevice] | AbsentSource:
    """Try one environment; go on behind a device whose trial killed the child."""
    probed: list[ProbedDevice] = []
    while True:
        answers, death = _run_probe(candidate, start=len(probed), timeout_s=timeout_s)
        if not answers or not answers[0].get("listed"):
            return AbsentSource(
                source=candidate.source,
                reason=f"{candidate.environment['OCL_ICD_VENDORS']}: {death or 'lists no device'}",
                mend="see llmperf doctor",
            )
        refs = [
            DeviceRef(**{**listed, "environment": dict(candidate.environment)})
            for listed in answers[0]["listed"]
        ]
        for answer in answers[1:]:
            probed.append(_verdict(candidate, refs[len(probed)], answer))
        if len(probed) >= len(refs):
            return probed
        reason = f"its probe died: {death or 'no answer'}"
        probed.append(_verdict(candidate, refs[len(probed)], {"reason": reason, "device": None}))
        if len(probed) >= len(refs):
            return probed


def _verdict(candidate: Candidate, ref: DeviceRef, answer: dict[str, Any]) -> ProbedDevice:
    values = answer["device"]
    device = None
    if values is not None:
        sizes = tuple(values["max_work_item_sizes"])
        device = Device(**{**values, "max_work_item_sizes": sizes})
    reason = answer["reason"]
    return ProbedDevice(
        ref=ref,
        device=device,
        usable=reason is None,
        reason=reason or "",
        source=candidate.source,
    )


def _run_probe(
    candidate: Candidate, *, start: int, timeout_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Return the child's answers and, where it did not end well, how it ended."""
    command = [sys.executable, "-m", "workers.device.probe", str(start)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **candidate.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return _answers(error.stdout), f"no answer within {timeout_s:g} s"
    death = ""
    if done.returncode != 0:
        tail = done.stderr.decode(errors="replace").strip()[-_STDERR_TAIL_CHARACTERS:]
        death = f"{_ending(done.returncode)}: {tail}" if tail else _ending(done.returncode)
    return _answers(done.stdout), death


def _answers(raw: bytes | None) -> list[dict[str, Any]]:
    lines = (raw or b"").decode(errors="replace").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    return f"killed by {signal.Signals(-returncode).name}"
