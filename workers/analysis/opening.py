"""The door to a device that runs probe launches; pyopencl is imported only when it is opened."""

from __future__ import annotations

from workers.device.interface import DeviceRef, Prober
from workers.device.replay import SELECTOR_PREFIX
from workers.discovery.find import enter_environment


def open_prober(ref: DeviceRef) -> Prober:
    """Open the device that ``ref`` names for probe launches, in this process.

    Raises:
        LookupError: The device is not there or cannot be opened, or (replay) nothing can be launched on it.
    """
    if ref.selector.startswith(SELECTOR_PREFIX):
        raise LookupError("a replay device cannot probe")
    enter_environment(ref)
    from workers.analysis.opencl_prober import OpenclProber  # noqa: PLC0415

    return OpenclProber(ref)
