"""The CPU device on which virtual launches run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.work.opencl_virtual import OpenclVirtualDevice
from workers.work.opening import open_virtual


@pytest.fixture(scope="module")
def ref() -> DeviceRef:
    """The CPU device."""
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())
    return found


@pytest.fixture(scope="module")
def virtual_device(ref: DeviceRef) -> Iterator[OpenclVirtualDevice]:
    """The same device, opened in this process for virtual launches."""
    opened = open_virtual(ref)
    yield opened
    opened.close()
