"""Claim a GPU of this host for one collector: take its lock, and check that no other job uses it.

Decides which collector may time on an NVIDIA GPU. Times measured beside another job are wrong, and
nothing in the times shows it. CPU and replay devices have no owner. ``gpu_lock.py`` has the lock
itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from llmperf_common.records import Device
from workers.device.interface import DeviceRef
from workers.device.nvidia.cache import NVIDIA_PLATFORM
from workers.device.nvidia.gpu_lock import PATIENCE_S, POLL_S, GpuTakenError, gpu_lock, printable
from workers.device.nvidia.nvml import NvmlAbsent, all_compute_pids, open_gpu_of
from workers.device.nvidia.nvml_gpu import ComputeProcess, NvmlGpu
from workers.device.selectors import is_replay
from workers.discovery.find import DeviceReport

_UNKNOWN = "whether other processes compute on %s is not known: %s"

_logger = logging.getLogger(__name__)


class GpuClaim:
    """Claims the device of a run until ``close``; a context manager.

    Create the claim before the device is opened, when every process that computes on a GPU belongs
    to another job. The claim records these processes. In a container with its own pids, where NVML
    reports pids of the host, only this record later tells another job's processes from this
    collector's children.

    Args:
        ref: the device that is about to be opened.
        out: the dataset folder; the message to another collector that is refused names it.
        allow_busy: accept other compute processes (``limits.allow_busy_gpu``), but no other owner.
    """

    def __init__(self, ref: DeviceRef, *, out: str, allow_busy: bool) -> None:
        self._ref = ref
        self._out = out
        self._allow_busy = allow_busy
        self._stack = contextlib.ExitStack()
        before = all_compute_pids() if ref.platform == NVIDIA_PLATFORM else {}
        self._before = {} if isinstance(before, NvmlAbsent) else before

    def take(self, device: Device) -> None:
        """Take the lock of ``device`` and look for other jobs; only for a real NVIDIA GPU.

        Raises:
            GpuTakenError: Another collector holds the GPU, other jobs use it, or locking failed.
        """
        if not needs_owner(device, self._ref):
            return
        self._stack.enter_context(gpu_lock(device, self._out))
        gpu = open_gpu_of(device)
        if not isinstance(gpu, NvmlGpu):
            why = f"{gpu.reason} ({gpu.mend})" if gpu else "not an NVIDIA GPU"
            _logger.warning(_UNKNOWN, device.name, why)
            return
        with gpu:
            if gpu.compute_processes() is None:
                _logger.warning(_UNKNOWN, device.name, "NVML does not report them")
            self._refuse_strangers(device, gpu)

    def close(self) -> None:
        """Release the GPU."""
        self._stack.close()

    def __enter__(self) -> GpuClaim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_strangers(self, device: Device, gpu: NvmlGpu) -> None:
        before = self._before.get(device.device_uuid.lower().removeprefix("gpu-"), frozenset())
        deadline_s = time.monotonic() + PATIENCE_S
        while strangers := strangers_among(gpu.compute_processes() or (), before):
            if time.monotonic() > deadline_s:
                break
            time.sleep(POLL_S)
        if not strangers:
            return
        who = ", ".join(_describe(one) for one in strangers[:5])
        if self._allow_busy:
            _logger.warning("%s is shared with %s: their work changes the times", device.name, who)
            return
        raise GpuTakenError(
            f"{device.name} ({device.device_uuid}) is used by {who}: "
            "times measured beside another job are wrong. "
            "Wait for it, choose another --device, or use --set limits.allow_busy_gpu=true"
        )


@contextlib.contextmanager
def held_for_analysis(ref: DeviceRef, report: DeviceReport, out: str) -> Iterator[None]:
    """Hold the GPU lock of ``ref`` for trial launches, which would disturb a collector's times.

    No effect for a device without owners. Other jobs do not matter, because nothing is timed.

    Raises:
        GpuTakenError: A collector holds the GPU.
    """
    device = next((one.device for one in report.devices if one.ref == ref), None)
    if device is None or not needs_owner(device, ref):
        yield
        return
    with gpu_lock(device, out):
        yield


def needs_owner(device: Device, ref: DeviceRef) -> bool:
    """Return whether only one collector may time on ``device``: true of a real NVIDIA GPU."""
    return device.platform == NVIDIA_PLATFORM and not is_replay(ref.selector)


def strangers_among(
    found: tuple[ComputeProcess, ...], before: frozenset[int]
) -> tuple[ComputeProcess, ...]:
    """Return the processes on the device that do not belong to this collector.

    This process, its ancestors and its descendants belong to this collector. In a container NVML
    may report a child's pid on the host, which is not in /proc. So a process whose pid is neither
    in ``before`` nor in /proc counts as the collector's, too.

    Args:
        found: the processes that NVML reports on the device.
        before: pids that NVML reported before this collector opened the device.
    """
    above = _ancestors(os.getpid())
    return tuple(
        one
        for one in found
        if one.pid not in above
        and os.getpid() not in _ancestors(one.pid)
        and (one.pid in before or Path(f"/proc/{one.pid}").exists())
    )


def _ancestors(pid: int) -> tuple[int, ...]:
    """Return a process and its ancestors, as far as /proc shows them."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        # The command name in parentheses may contain spaces and parentheses.
        pid = int(text.rpartition(")")[2].split()[1])
    return tuple(found)


def _describe(process: ComputeProcess) -> str:
    try:
        command = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"pid {process.pid} (of another user or container)"
    return f"pid {process.pid} ({printable(command.strip())})"
