"""One owner for each GPU of a host: its lock, and no other process computing on it.

Owns who may time on an NVIDIA GPU. Times beside another job are wrong, and nothing in them shows it. CPU and replay
devices have no owner. The lock itself: ``gpu_lock.py``.
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
from workers.device.replay import SELECTOR_PREFIX
from workers.discovery.find import DeviceReport

_UNKNOWN = "whether others compute on %s is not known: %s"

_logger = logging.getLogger(__name__)


class GpuClaim:
    """Makes the device of a run ours, once it is known, until ``close``; a context manager.

    Make it before the device is opened: what computes on a GPU then is not a child of ours. In a container with
    pids of its own, NVML's are the host's, and nothing else tells our child from a stranger.

    Args:
        ref: the device that is about to be opened.
        out: the dataset folder, for the message to others.
        allow_busy: other compute processes are borne (``limits.allow_busy_gpu``); another owner never is.
    """

    def __init__(self, ref: DeviceRef, *, out: str, allow_busy: bool) -> None:
        self._ref = ref
        self._out = out
        self._allow_busy = allow_busy
        self._stack = contextlib.ExitStack()
        before = all_compute_pids() if ref.platform == NVIDIA_PLATFORM else {}
        self._before = {} if isinstance(before, NvmlAbsent) else before

    def take(self, device: Device) -> None:
        """Take the lock of ``device`` and look for strangers on it; nothing for a device without owners.

        Raises:
            GpuTakenError: Another collector holds it, others compute on it, or it cannot be locked.
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
                _logger.warning(_UNKNOWN, device.name, "NVML does not tell")
            self._refuse_strangers(device, gpu)

    def close(self) -> None:
        """Give the GPU back."""
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
            _logger.warning("%s is shared with %s: times are not its own", device.name, who)
            return
        raise GpuTakenError(
            f"{device.name} ({device.device_uuid}) is used by {who}: times measured beside another job are wrong. "
            "Wait for it, choose another --device, or say --set limits.allow_busy_gpu=true"
        )


@contextlib.contextmanager
def held_for_analysis(ref: DeviceRef, report: DeviceReport, out: str) -> Iterator[None]:
    """Hold the lock of the device behind ``ref``, if it has owners: trials would disturb the times of a collector.

    Others who compute there do not matter: nothing is timed.

    Raises:
        GpuTakenError: A collector holds it.
    """
    device = next((one.device for one in report.devices if one.ref == ref), None)
    if device is None or not needs_owner(device, ref):
        yield
        return
    with gpu_lock(device, out):
        yield


def needs_owner(device: Device, ref: DeviceRef) -> bool:
    """Whether only one collector may time on ``device``: NVIDIA GPUs, but not recordings of one."""
    return device.platform == NVIDIA_PLATFORM and not ref.selector.startswith(SELECTOR_PREFIX)


def strangers_among(
    found: tuple[ComputeProcess, ...], before: frozenset[int]
) -> tuple[ComputeProcess, ...]:
    """Return those processes on the device that are not ours.

    Ours are this process, its ancestors and its descendants. In a container NVML may report the
    pid that a child has on the host. So a pid that is neither in ``before`` nor in /proc counts as
    ours.

    Args:
        found: the processes that NVML reports on the device.
        before: pids that NVML reported before any process of ours opened the device.
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
    """Return a process and those above it, as far as they can be seen."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        # The command name may hold spaces and brackets.
        pid = int(text.rpartition(")")[2].split()[1])
    return tuple(found)


def _describe(process: ComputeProcess) -> str:
    try:
        command = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"pid {process.pid} (of another user's or container's)"
    return f"pid {process.pid} ({printable(command.strip())})"
