"""Find the OpenCL device of an actor: exactly the GPU that Ray assigned to it.

Owns the identity check: Ray's GPU id → NVML (by index in PCI bus order, or by UUID) → UUID → the
OpenCL device of that UUID. ``CUDA_VISIBLE_DEVICES`` only prevents that other GPUs are tried; its
indices are never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.device.interface import DeviceRef
from workers.device.nvidia.cache import NVIDIA_PLATFORM
from workers.device.nvidia.nvml import NvmlAbsent, uuid_of_gpu
from workers.device.selectors import is_replay
from workers.discovery.find import DeviceReport, NoDevice, choose, try_runtimes_for


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSlotDevice:
    """Why an actor has no device, and what to do about it."""

    reason: str


def device_of_slot(
    selector: str, gpu_ids: Sequence[str], report: DeviceReport | None = None
) -> DeviceRef | NoSlotDevice:
    """Return the device of an actor, or why it has none.

    Args:
        selector: the selector of the actor's pool: ``auto``, ``cuda``, ``pocl``, ``cpu`` or
            ``replay:FILE``.
        gpu_ids: the GPU ids that Ray assigned to the actor: one id, or none on a node without GPUs.
        report: the OpenCL devices of this process; if it is None, they are tried now.
    """
    if is_replay(selector) or selector in ("cpu", "pocl"):
        return _chosen(selector, report)
    if selector not in ("auto", "cuda"):
        return NoSlotDevice(
            reason=f"--device {selector!r} with --cluster: Ray chooses the GPU; use auto, cuda, "
            "cpu, pocl or replay:FILE"
        )
    uuid = uuid_of_gpu(gpu_ids[0]) if gpu_ids else None
    if uuid is None or isinstance(uuid, NvmlAbsent):
        return _without_gpu(selector, gpu_ids, uuid, report)
    report = try_runtimes_for("cuda") if report is None else report
    for tried in report.devices:
        if tried.device is not None and bare_uuid(tried.device.device_uuid) == bare_uuid(uuid):
            if tried.usable:
                return tried.ref
            return NoSlotDevice(
                reason=f"GPU {gpu_ids[0]} ({uuid}) is not usable by OpenCL: {tried.reason}"
            )
    there = [p.device.device_uuid for p in report.devices if p.device is not None]
    return NoSlotDevice(
        reason=f"Ray gave GPU {gpu_ids[0]} ({uuid}), but OpenCL lists "
        f"{', '.join(there) or 'no device'}: run `llmperf doctor` on that node"
    )


def bare_uuid(uuid: str) -> str:
    """Return a GPU's UUID in lower case, without ``GPU-``."""
    return uuid.lower().removeprefix("gpu-")


def _without_gpu(
    selector: str,
    gpu_ids: Sequence[str],
    absent: NvmlAbsent | None,
    report: DeviceReport | None,
) -> DeviceRef | NoSlotDevice:
    """Return the CPU device of a slot without a GPU; refuse a GPU that cannot be identified."""
    if selector == "cuda":
        why = f"NVML: {absent.reason} ({absent.mend})" if absent else "Ray gave no GPU"
        return NoSlotDevice(reason=f"--device cuda: {why}")
    if gpu_ids:
        report = try_runtimes_for("cuda") if report is None else report
        if any(p.ref.platform == NVIDIA_PLATFORM for p in report.devices):
            assert absent is not None, "there was an id to look up"
            return NoSlotDevice(
                reason=f"cannot check which card GPU {gpu_ids[0]} is: {absent.reason} "
                f"({absent.mend})"
            )
    return _chosen("cpu", report)


def _chosen(selector: str, report: DeviceReport | None) -> DeviceRef | NoSlotDevice:
    try:
        ref = choose(selector, report)
    except ValueError as error:
        return NoSlotDevice(reason=str(error))
    return NoSlotDevice(reason=ref.message()) if isinstance(ref, NoDevice) else ref
