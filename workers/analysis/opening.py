"""Open a device for probe launches; pyopencl is imported only then."""

from __future__ import annotations

from workers.device.interface import DeviceRef, Prober
from workers.device.selectors import is_replay
from workers.discovery.opening import enter_environment


def open_prober(ref: DeviceRef) -> Prober:
    """Open the device that ``ref`` names for probe launches, in this process.

    Raises:
        LookupError: There is no such device, it cannot be opened, or it is a replay device.
    """
    if is_replay(ref.selector):
        raise LookupError("a replay device runs no kernels, so it cannot probe")
    enter_environment(ref)
    from workers.analysis.opencl_prober import OpenclProber  # noqa: PLC0415

    return OpenclProber(ref)
