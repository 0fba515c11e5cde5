"""The NVIDIA GPU that the tests of this folder run on; without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workers.device.interface import DeviceRef
from workers.device.opencl.session import OpenclSession
from workers.discovery.find import choose
from workers.discovery.opening import open_session


@pytest.fixture(scope="module")
def ref() -> DeviceRef:
    chosen = choose("cuda")
    if not isinstance(chosen, DeviceRef):
        pytest.skip(f"no NVIDIA GPU: {chosen.message()}")
    return chosen


@pytest.fixture(scope="module")
def session(ref: DeviceRef) -> Iterator[OpenclSession]:
    with open_session(ref) as opened:
        assert isinstance(opened, OpenclSession)
        yield opened
