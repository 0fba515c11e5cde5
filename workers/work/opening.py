"""Open a CPU device for virtual launches; pyopencl is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.device.interface import DeviceRef
from workers.device.selectors import is_replay
from workers.discovery.opening import enter_environment

if TYPE_CHECKING:
    from workers.work.opencl_virtual import OpenclVirtualDevice


def open_virtual(ref: DeviceRef) -> OpenclVirtualDevice:
    """Open the CPU device that ``ref`` names for virtual launches, in this process.

    Raises:
        LookupError: There is no such device, it cannot be opened, or it is a replay device.
    """
    if is_replay(ref.selector):
        raise LookupError("a replay device runs no kernels, so it cannot count work")
    enter_environment(ref)
    from workers.work.opencl_virtual import OpenclVirtualDevice  # noqa: PLC0415

    return OpenclVirtualDevice(ref)
