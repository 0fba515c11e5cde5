"""Tries one OpenCL runtime in child processes, because a broken runtime does not fail: it crashes or hangs.

Owns the trial of one candidate and how it may end: answered, died, or no answer in time. Each trial leaves
no process and no scratch folder. What a child does: ``probe.py``; what is remembered: ``probe_verdicts.py``.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmperf_common.records import Device
from workers.device.candidates import AbsentSource, Candidate, Source
from workers.device.interface import DeviceRef
from workers.device.opencl_cache import remove_dead_caches

PROBE_TIMEOUT_S = 10.0
"""Seconds a runtime has for each of its devices; a sound CPU runtime needs 1 to 3 of them."""

Tell = Callable[[str], None]
"""Called with one line for the user."""

_STDERR_TAIL_CHARACTERS = 300
_READ_BYTES = 65_536


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
class RuntimeVerdict:
    """What one candidate gave.

    Attributes:
        devices: those it lists, each with its verdict.
        absent: why there is none; None where ``devices`` has some.
        ended_itself: False where a child died or had to be killed, so that another try may end otherwise.
    """

    devices: tuple[ProbedDevice, ...]
    absent: AbsentSource | None
    ended_itself: bool


def probe_runtime(
    candidate: Candidate, *, wanted: str, timeout_s: float = PROBE_TIMEOUT_S
) -> RuntimeVerdict:
    """Try the devices of one candidate; go on behind a device whose trial killed the child.

    Args:
        candidate: the environment to start the child in.
        wanted: ``cuda:N`` tries that GPU alone, anything else each device.
        timeout_s: for each device that the runtime lists.
    """
    probed: list[ProbedDevice] = []
    ended_itself = True
    while True:
        answers, death = _run_child(candidate, len(probed), wanted, timeout_s)
        ended_itself = ended_itself and not death
        if not answers or not answers[0].get("listed"):
            where = candidate.environment["OCL_ICD_VENDORS"]
            reason = f"{where}: {death or 'lists no device'}"
            absent = AbsentSource(source=candidate.source, reason=reason, mend="see llmperf doctor")
            return RuntimeVerdict(devices=(), absent=absent, ended_itself=ended_itself)
        refs = [
            DeviceRef(**{**listed, "environment": dict(candidate.environment)})
            for listed in answers[0]["listed"]
        ]
        for answer in answers[1:]:
            probed.append(verdict_of(candidate, refs[len(probed)], answer))
        if len(probed) < len(refs):
            reason = f"its probe died: {death or 'no answer'}"
            answer = {"reason": reason, "device": None}
            probed.append(verdict_of(candidate, refs[len(probed)], answer))
        if len(probed) >= len(refs):
            return RuntimeVerdict(devices=tuple(probed), absent=None, ended_itself=ended_itself)


def verdict_of(candidate: Candidate, ref: DeviceRef, answer: dict[str, Any]) -> ProbedDevice:
    """Return a device with its verdict, from the JSON values ``device`` and ``reason`` of a probe."""
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


def _run_child(
    candidate: Candidate, start: int, wanted: str, timeout_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Return the child's answers and, where it did not end well, how it ended."""
    command = [sys.executable, "-m", "workers.device.probe", str(start), wanted]
    if candidate.known_cpu_only:
        command.append("--known-cpu-only")
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            env={**os.environ, **candidate.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a compiler's own children end with it
        )
        try:
            answers, in_time = _read_answers(child, start, timeout_s)
        finally:
            _end(child)
        if not in_time:
            return answers, f"no answer within {timeout_s:g} s"
        if child.returncode == 0:
            return answers, ""
        errors.seek(0)
        lines = errors.read().decode(errors="replace").split("\n")
        tail = " | ".join(" ".join(one.split()) for one in lines if one.strip())
        tail = tail[-_STDERR_TAIL_CHARACTERS:]
        ending = _ending(child.returncode)
        return answers, f"{ending}: {tail}" if tail else ending


def _read_answers(
    child: subprocess.Popen[bytes], start: int, timeout_s: float
) -> tuple[list[dict[str, Any]], bool]:
    """Read the child's lines until it ends; the second value is False where it did not in time."""
    assert child.stdout is not None
    started_s, raw, num_devices = time.monotonic(), b"", 1
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            left_s = started_s + num_devices * timeout_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                return _answers(raw), False
            piece = os.read(child.stdout.fileno(), _READ_BYTES)
            if not piece:
                break
            raw += piece
            if (found := _answers(raw)) and "listed" in found[0]:
                num_devices = max(1, len(found[0]["listed"]) - start)
    try:
        child.wait(max(0.1, started_s + num_devices * timeout_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _answers(raw), False
    return _answers(raw), True


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's process group if it still runs, and remove what a killed one leaves."""
    was_running = child.poll() is None
    if was_running:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()
    if child.returncode != 0:
        remove_dead_caches(Path(tempfile.gettempdir()))


def _answers(raw: bytes) -> list[dict[str, Any]]:
    lines = raw.decode(errors="replace").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    return f"killed by {signal.Signals(-returncode).name}"
