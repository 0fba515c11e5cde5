"""Try one OpenCL runtime in child processes, because a broken runtime crashes or hangs.

Owns the trial of one candidate, its three results (answered, died, no answer in time) and the words
in which ``llmperf doctor`` reports them. A trial leaves no process and no scratch folder behind.
``trial_child.py`` is the child; ``trial_verdicts.py`` remembers results.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmperf_common.awake_clock import awake_s
from llmperf_common.records import Device
from workers.device.interface import DeviceRef
from workers.device.opencl.cache import remove_dead_caches
from workers.discovery.candidates import AbsentSource, Candidate, Source
from workers.sandbox.child_environment import PYTHON, child_environment

PROBE_TIMEOUT_S = 10.0
"""Seconds that a runtime has for each of its devices; a working CPU runtime needs 1 to 3."""

GPU_LISTING_TIMEOUT_S = 60.0
"""Seconds that a GPU's driver has to list its devices: it may have to start several cards first."""

TO_MEND = "repair, update or remove this runtime"
_POLL_S = 0.05

Tell = Callable[[str], None]
"""Called with one line for the user."""

_STDERR_TAIL_CHARACTERS = 300
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedDevice:
    """One OpenCL device, and whether a trial build and launch passed on it.

    If it is not usable, ``device`` is None and ``reason`` says why.
    """

    ref: DeviceRef
    device: Device | None
    usable: bool
    reason: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeVerdict:
    """The result of trying one candidate.

    Attributes:
        devices: the devices that the runtime lists, each with its verdict.
        absent: why there are no devices; None if there are devices.
        ended_itself: False if a child died or was killed; another trial may then end differently.
    """

    devices: tuple[TriedDevice, ...]
    absent: AbsentSource | None
    ended_itself: bool


def try_runtime(
    candidate: Candidate,
    *,
    wanted: str,
    timeout_s: float = PROBE_TIMEOUT_S,
    listing_timeout_s: float | None = None,
) -> RuntimeVerdict:
    """Try the devices of one candidate; after a death, a new child continues with the next device.

    Args:
        candidate: the environment to start the child in.
        wanted: ``cuda:N`` tries only that GPU; any other value tries every device.
        timeout_s: limit for each device.
        listing_timeout_s: limit for the list of devices; None: ``timeout_s``, longer for a GPU.
    """
    if listing_timeout_s is None:
        is_gpu = candidate.may_have("cuda")
        listing_timeout_s = max(timeout_s, GPU_LISTING_TIMEOUT_S) if is_gpu else timeout_s
    tried: list[TriedDevice] = []
    refs: list[DeviceRef] = []
    ended_itself = True
    while True:
        child = _Child(candidate, len(tried), wanted)
        answers, death = child.run(timeout_s, listing_timeout_s)
        ended_itself = ended_itself and not death
        listed = answers[0].get("listed") if answers else None
        if not refs and not listed:
            where = f"{candidate.environment['OCL_ICD_VENDORS']}: "
            absent = AbsentSource(
                source=candidate.source, reason=where + (death or "lists no device"), mend=TO_MEND
            )
            return RuntimeVerdict(devices=(), absent=absent, ended_itself=ended_itself)
        if not refs:
            environment = dict(candidate.environment)
            refs = [DeviceRef(**{**one, "environment": environment}) for one in listed or ()]
        for answer in answers[1:]:
            tried.append(verdict_of(candidate, refs[len(tried)], answer))
        # The device under trial has failed. If the runtime lists no devices any more, all have.
        num_failed = 1 if listed else len(refs)
        for ref in refs[len(tried) : len(tried) + num_failed]:
            answer = {"reason": f"its trial died: {death or 'no answer'}", "device": None}
            tried.append(verdict_of(candidate, ref, answer))
        if len(tried) >= len(refs):
            return RuntimeVerdict(devices=tuple(tried), absent=None, ended_itself=ended_itself)


def verdict_of(candidate: Candidate, ref: DeviceRef, answer: dict[str, Any]) -> TriedDevice:
    """Return a device with its verdict, from a trial's JSON values ``device`` and ``reason``."""
    values = answer["device"]
    device = None
    if values is not None:
        sizes = tuple(values["max_work_item_sizes"])
        device = Device(**{**values, "max_work_item_sizes": sizes})
    reason = answer["reason"]
    return TriedDevice(
        ref=ref,
        device=device,
        usable=reason is None,
        reason=reason or "",
        source=candidate.source,
    )


class _Child:
    """A child that lists the devices of a candidate and tries them from index ``start`` on."""

    def __init__(self, candidate: Candidate, start: int, wanted: str) -> None:
        arguments = [str(os.getpid()), str(start), wanted]
        self._command = [*PYTHON, "-m", "workers.discovery.trial_child", *arguments]
        if candidate.known_cpu_only:
            self._command.append("--known-cpu-only")
        self._environment = child_environment(candidate.environment)

    def run(self, timeout_s: float, listing_timeout_s: float) -> tuple[list[dict[str, Any]], str]:
        """Return the child's answers, and how it ended if it failed, else ""."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # so that its compiler's processes are ended, too
            )
            try:
                raw, late_s = _read(process, timeout_s, listing_timeout_s)
            finally:
                _end(process)
            if late_s is not None:
                return _answers(raw), f"no answer within {late_s:g} s"
            if process.returncode == 0:
                return _answers(raw), ""
            errors.seek(0)
            return _answers(raw), _ending(process.returncode, errors.read())


def _read(
    process: subprocess.Popen[bytes], timeout_s: float, listing_timeout_s: float
) -> tuple[bytes, float | None]:
    """Return what the process writes until it ends, and the limit in seconds that it exceeded.

    The end of the process counts, not the end of its stdout: a grandchild may keep stdout open.
    """
    assert process.stdout is not None
    descriptor, raw = process.stdout.fileno(), b""
    limit_s = listing_timeout_s
    deadline_s = awake_s() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            has_ended = _has_ended(process)  # asked before the read, which then is complete
            is_open = True
            while is_open and selector.select(0 if has_ended else _POLL_S):
                piece = os.read(descriptor, _READ_BYTES)
                is_open = bool(piece)
                raw += piece
                if b"\n" in piece:
                    limit_s = timeout_s
                    deadline_s = awake_s() + limit_s
            if has_ended:
                return raw, None
            if awake_s() > deadline_s:
                return raw, limit_s
            if not is_open:
                time.sleep(_POLL_S)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended. It is not reaped, so its group keeps its number."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process group; remove the cache folders of killed processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    if process.returncode != 0:
        remove_dead_caches(Path(tempfile.gettempdir()))


def _answers(raw: bytes) -> list[dict[str, Any]]:
    lines = raw.decode(errors="replace").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _ending(returncode: int, errors: bytes) -> str:
    """Return how a process ended, with the end of its stderr in one line."""
    if returncode >= 0:
        ending = f"exit code {returncode}"
    else:
        ending = f"killed by {signal.Signals(-returncode).name}"
    lines = errors.decode(errors="replace").split("\n")
    tail = " | ".join(" ".join(one.split()) for one in lines if one.strip())
    return f"{ending}: {tail[-_STDERR_TAIL_CHARACTERS:]}" if tail else ending
