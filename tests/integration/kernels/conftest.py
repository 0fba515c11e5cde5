"""The CPU device on which virtual launches run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workers.discovery.find import NoDevice, choose
from workers.work.opencl_virtual import OpenclVirtualDevice
from workers.work.opening import open_virtual


@pytest.fixture(scope="module")
def virtual_device() -> Iterator[OpenclVirtualDevice]:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())
    opened = open_virtual(found)
    yield opened
    opened.close()
