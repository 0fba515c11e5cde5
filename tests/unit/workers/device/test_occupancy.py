"""Occupancy against NVIDIA's calculator, each number of it computed with CUDA 13.0's ``cuda_occupancy.h``; its way into the dataset."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from llmperf_common.builds import KernelResources, OccupancyLimit
from llmperf_common.store.tables.rows import kernels_table
from tests.support.factories.dataset_factory import make_kernel, make_result, make_timing
from workers.device.cuda.occupancy import Multiprocessor, occupancy
from workers.sandbox.channel import Channel
from workers.sandbox.messages import Compiled

SM_90 = Multiprocessor(
    compute_capability=(9, 0), warp_size=32, max_work_items=2048, max_work_groups=32, max_work_group_size=1024,
    registers=65536, registers_per_work_group=65536, shared_bytes=233472, shared_bytes_per_work_group=49152,
    reserved_shared_bytes=1024,
)  # fmt: skip
SM_80 = replace(SM_90, compute_capability=(8, 0), shared_bytes=167936)
SM_86 = replace(
    SM_90, compute_capability=(8, 6), shared_bytes=102400, max_work_items=1536, max_work_groups=16
)
SM_89 = replace(SM_86, compute_capability=(8, 9), max_work_groups=24)
SM_70 = replace(SM_90, compute_capability=(7, 0), shared_bytes=98304, reserved_shared_bytes=0)


@pytest.mark.parametrize(
    ("sm", "registers", "shared_bytes", "work_group_size", "num_work_groups"),
    [
        (SM_70, 32, 0, 256, 8),
        (SM_70, 40, 0, 256, 6),
        (SM_70, 33, 0, 128, 12),
        (SM_70, 255, 0, 256, 1),
        (SM_70, 255, 0, 257, 0),
        (SM_70, 128, 0, 1024, 0),
        (SM_70, 64, 0, 1024, 1),
        (SM_70, 65, 0, 1024, 0),
        (SM_70, 84, 14981, 216, 2),
        (SM_70, 18, 1702, 1018, 2),
        (SM_70, 96, 17264, 2, 5),
        (SM_70, 54, 15717, 619, 1),
        (SM_70, 24, 1, 32, 32),
        (SM_80, 32, 0, 256, 8),
        (SM_80, 40, 0, 256, 6),
        (SM_80, 33, 0, 128, 12),
        (SM_80, 255, 0, 256, 1),
        (SM_80, 255, 0, 257, 0),
        (SM_80, 128, 0, 1024, 0),
        (SM_80, 64, 0, 1024, 1),
        (SM_80, 65, 0, 1024, 0),
        (SM_80, 84, 14981, 216, 2),
        (SM_80, 18, 1702, 1018, 2),
        (SM_80, 16, 49152, 64, 3),
        (SM_80, 16, 49153, 64, 0),
        (SM_80, 96, 17264, 2, 9),
        (SM_80, 54, 15717, 619, 1),
        (SM_80, 24, 1, 32, 32),
        (SM_86, 32, 0, 256, 6),
        (SM_86, 40, 0, 256, 6),
        (SM_86, 33, 0, 128, 12),
        (SM_86, 255, 0, 256, 1),
        (SM_86, 255, 0, 257, 0),
        (SM_86, 128, 0, 1024, 0),
        (SM_86, 64, 0, 1024, 1),
        (SM_86, 65, 0, 1024, 0),
        (SM_86, 84, 14981, 216, 2),
        (SM_86, 18, 1702, 1018, 1),
        (SM_86, 16, 49152, 64, 2),
        (SM_86, 16, 49153, 64, 0),
        (SM_86, 96, 17264, 2, 5),
        (SM_86, 54, 15717, 619, 1),
        (SM_86, 24, 1, 32, 16),
        (SM_89, 32, 0, 256, 6),
        (SM_89, 40, 0, 256, 6),
        (SM_89, 33, 0, 128, 12),
        (SM_89, 255, 0, 256, 1),
        (SM_89, 255, 0, 257, 0),
        (SM_89, 128, 0, 1024, 0),
        (SM_89, 64, 0, 1024, 1),
        (SM_89, 65, 0, 1024, 0),
        (SM_89, 84, 14981, 216, 2),
        (SM_89, 18, 1702, 1018, 1),
        (SM_89, 16, 49152, 64, 2),
        (SM_89, 16, 49153, 64, 0),
        (SM_89, 96, 17264, 2, 5),
        (SM_89, 54, 15717, 619, 1),
        (SM_89, 24, 1, 32, 24),
        (SM_90, 32, 0, 256, 8),
        (SM_90, 40, 0, 256, 6),
        (SM_90, 33, 0, 128, 12),
        (SM_90, 255, 0, 256, 1),
        (SM_90, 255, 0, 257, 0),
        (SM_90, 128, 0, 1024, 0),
        (SM_90, 64, 0, 1024, 1),
        (SM_90, 65, 0, 1024, 0),
        (SM_90, 84, 14981, 216, 2),
        (SM_90, 18, 1702, 1018, 2),
        (SM_90, 16, 49152, 64, 4),
        (SM_90, 16, 49153, 64, 0),
        (SM_90, 96, 17264, 2, 12),
        (SM_90, 54, 15717, 619, 1),
        (SM_90, 24, 1, 32, 32),
    ],
)
def test_as_many_work_groups_as_nvidias_calculator_says(
    sm: Multiprocessor,
    registers: int,
    shared_bytes: int,
    work_group_size: int,
    num_work_groups: int,
) -> None:
    held = occupancy(
        sm, registers=registers, shared_bytes=shared_bytes, work_group_size=work_group_size,
        max_work_group_size=1024,
    )  # fmt: skip
    assert held is not None
    assert held.num_work_groups == num_work_groups
    warps = -(-work_group_size // 32)
    assert held.share == num_work_groups * warps * 32 / sm.max_work_items


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "work_group_size", "limits"),
    [
        (16, 0, 32, {OccupancyLimit.WORK_GROUPS}),
        (16, 0, 256, {OccupancyLimit.WORK_ITEMS}),
        (16, 0, 64, {OccupancyLimit.WORK_GROUPS, OccupancyLimit.WORK_ITEMS}),
        (64, 0, 256, {OccupancyLimit.REGISTERS}),
        (16, 40_000, 256, {OccupancyLimit.SHARED_MEMORY}),
    ],
)
def test_what_bounds_it_is_said(
    registers: int, shared_bytes: int, work_group_size: int, limits: set[OccupancyLimit]
) -> None:
    held = occupancy(
        SM_90, registers=registers, shared_bytes=shared_bytes, work_group_size=work_group_size,
        max_work_group_size=1024,
    )  # fmt: skip
    assert held is not None
    assert set(held.limited_by) == limits


def test_a_work_group_larger_than_the_kernel_was_compiled_for_does_not_run() -> None:
    held = occupancy(
        SM_90, registers=32, shared_bytes=0, work_group_size=257, max_work_group_size=256
    )
    assert held is not None
    assert (held.num_work_groups, held.share) == (0, 0.0)


@pytest.mark.parametrize("major", [3, 6, 10, 12])
def test_other_architectures_have_no_answer(major: int) -> None:
    sm = replace(SM_90, compute_capability=(major, 0))
    held = occupancy(
        sm, registers=32, shared_bytes=0, work_group_size=256, max_work_group_size=1024
    )
    assert held is None


def test_resources_become_columns_of_kernels() -> None:
    resources = KernelResources(
        registers=40, spill_bytes=12, local_bytes=16, shared_bytes=256, max_work_group_size=1024,
        occupancy=0.75, occupancy_work_group_size=256, occupancy_limits=(OccupancyLimit.REGISTERS,), seconds=0.05,
    )  # fmt: skip
    known = make_result(make_kernel(0), [make_timing()])
    assert known.build is not None
    known = replace(known, build=replace(known.build, resources=resources))
    unknown = make_result(make_kernel(1), [make_timing()])
    rows = kernels_table([known, unknown]).to_pylist()
    columns = ("registers", "spill_bytes", "shared_bytes", "occupancy")
    assert [rows[0][name] for name in columns] == [40, 12, 256, 0.75]
    assert [rows[1][name] for name in columns] == [None] * 4
    assert rows[0]["build"] == rows[1]["build"] | {"options": rows[0]["build"]["options"]}


def test_resources_reach_the_parent_as_they_are() -> None:
    ours, theirs = socket.socketpair()
    resources = KernelResources(
        registers=40, spill_bytes=None, local_bytes=16, shared_bytes=256, max_work_group_size=1024,
        occupancy=None, occupancy_work_group_size=256, occupancy_limits=tuple(OccupancyLimit), seconds=0.05,
    )  # fmt: skip
    sent = Compiled(options="", log="", seconds=0.1, resources=resources)
    with ours, theirs:
        Channel(ours).send(sent)
        assert Channel(theirs).receive() == sent
