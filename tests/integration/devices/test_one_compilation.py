"""PoCL compiles an analysed kernel once, and not anew for each local size of its probes."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from tests.support.reading import kernels_from_source
from workers.device.interface import DeviceRef
from workers.device.opencl.device import POCL_PLATFORM
from workers.discovery.find import NoDevice, choose
from workers.sandbox.child import CACHE_FOLDER
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.messages import Analysed, AnalyseJob, CompilerReady, FromChild

pytestmark = pytest.mark.opencl

SOURCE = """__kernel void k(__global float *a, __local float *t) {
    int l = get_local_id(0), g = get_group_id(0);
    t[l] = a[g * get_local_size(0) + l];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[g] = t[0]; }"""


@pytest.fixture
def pocl() -> DeviceRef:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())
    if found.platform != POCL_PLATFORM:
        pytest.skip(f"NOT TESTED: {found.platform} is not PoCL")
    return found


def test_the_local_sizes_of_an_analysis_share_one_compilation(
    tmp_path: Path, pocl: DeviceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POCL_WORK_GROUP_SPECIALIZATION", raising=False)
    (kernel,) = kernels_from_source(SOURCE)
    child = ChildStarter(tmp_path).start("workers.execution.analysis_child", "one", pocl)
    received: list[FromChild] = []
    try:
        while not any(isinstance(one, Analysed) and one.is_last for one in received):
            assert select.select([child], [], [], 60)[0], "the child is silent"
            messages, is_closed = child.receive()
            received += messages
            assert not is_closed, received
            if any(isinstance(one, CompilerReady) for one in messages):
                child.send(AnalyseJob(kernel=kernel))
        compiled = list((child.scratch / CACHE_FOLDER).rglob("lp_instrumented.so"))
    finally:
        child.kill()
    (analysed,) = [one for one in received if isinstance(one, Analysed)]
    assert all(extent.validated for extent in analysed.analysis.extents)
    assert len(compiled) == 1
