"""The door to a CPU device that runs virtual launches; pyopencl is imported only when it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.device.interface import DeviceRef
from workers.device.replay import SELECTOR_PREFIX
from workers.discovery.find import enter_environment

if TYPE_CHECKING:
    from workers.work.opencl_virtual import OpenclVirtualDevice


def open_virtual(ref: DeviceRef) -> OpenclVirtualDevice:
    """Open the CPU device that ``ref`` names for virtual launches, in this process.

    Raises:
        LookupError: The device is not there or cannot be opened, or (replay) nothing can be launched on it.
    """
    if ref.selector.startswith(SELECTOR_PREFIX):
        raise LookupError("a replay device cannot count")
    enter_environment(ref)
    from workers.work.opencl_virtual import OpenclVirtualDevice  # noqa: PLC0415

    return OpenclVirtualDevice(ref)
