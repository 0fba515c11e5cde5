"""How arguments reach a CUDA launch, on a driver that only remembers; the real one: ``tests/gpu/test_cuda.py``."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import numpy.typing as npt
import pytest

from workers.device.cuda.driver import CudaContext
from workers.device.cuda.launcher import (
    SPIN_PTX,
    CudaBuffer,
    CudaError,
    CudaKernel,
    EventClock,
    cuda_errors,
)
from workers.device.cuda.ptx import translate

SUMS = b""".version 8.4
.target sm_90, texmode_independent
.address_size 64
.entry sums(
    .param .u64 .ptr .global .align 4 sums_param_0,
    .param .u64 .ptr .shared .align 4 sums_param_1,
    .param .u8 sums_param_2,
    .param .u64 .ptr .shared .align 16 sums_param_3,
    .param .align 16 .b8 sums_param_4[16]
)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [sums_param_1];
    ld.param.u64 %rd2, [sums_param_3];
    ret;
}
"""
VECTOR = struct.pack("<4f", 1, 2, 3, 4)


class FailedError(Exception):
    """The driver's own error."""


class Allocation:
    """Host memory in the place of the GPU's."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = ctypes.create_string_buffer(num_bytes)

    def __int__(self) -> int:
        return ctypes.addressof(self.memory)


class Driver:
    """What ``cuda_launch`` uses of ``pycuda.driver``."""

    Error = FailedError

    class Context:
        @staticmethod
        def synchronize() -> None:
            calls.append("synchronize")

    class Event:
        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait")

        def time_till(self, _: object) -> float:
            return 0.5

    @staticmethod
    def mem_alloc(num_bytes: int) -> Allocation:
        if num_bytes > 2**20:
            raise FailedError("out of memory")
        return Allocation(num_bytes)

    @staticmethod
    def memcpy_htod(target: Allocation, source: npt.NDArray[np.uint8]) -> None:
        ctypes.memmove(target.memory, source.tobytes(), source.nbytes)

    @staticmethod
    def memcpy_dtoh(target: npt.NDArray[np.uint8], source: Allocation) -> None:
        target[:] = np.frombuffer(source.memory.raw, np.uint8)[: target.nbytes]

    @staticmethod
    def memcpy_dtod(target: Allocation, source: Allocation, num_bytes: int) -> None:
        ctypes.memmove(target.memory, source.memory, num_bytes)


class Function:
    """A loaded function that remembers its launches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.launches: list[tuple[object, ...]] = []

    def _launch_kernel(self, *arguments: object) -> None:
        calls.append(self.name)
        self.launches.append(arguments)


calls: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    calls.clear()


def sums() -> tuple[CudaKernel, Function]:
    function = Function("sums")
    return CudaKernel(
        Driver, translate(SUMS, work_dim=1, for_launch=True).entry("sums"), function
    ), function


def test_arguments_are_packed_as_the_parameters_lie() -> None:
    kernel, function = sums()
    buffer = CudaBuffer(Driver, np.arange(8, dtype=np.uint8))
    launch = kernel.prepare(
        global_size=(512, 4), local_size=(64, 2), arguments=[buffer, 40, b"\x05", 300, VECTOR]
    )
    launch.enqueue()
    ((groups, local_size, packed, shared_bytes, stream),) = function.launches
    assert (groups, local_size, stream) == ((8, 2), (64, 2), None)
    assert (
        shared_bytes == 128 + 384
    )  # each __local argument in whole steps of the widest type's alignment
    assert packed == buffer.address + struct.pack("<QB7xQ", 0, 5, 128) + VECTOR


@pytest.mark.parametrize(
    "arguments",
    [
        (None, 40, b"\x05", 300),
        (None, 40, b"\x05\x00", 300, VECTOR),
        (7, 40, b"\x05", 300, VECTOR),
        (None, None, b"\x05", 300, VECTOR),
        (None, bytes(8), b"\x05", 300, VECTOR),
        (bytes(8), 40, b"\x05", 300, VECTOR),
        (None, 40, 5, 300, VECTOR),
    ],
)
def test_an_argument_of_another_kind_is_no_launch(
    arguments: tuple[bytes | int | None, ...],
) -> None:
    kernel, function = sums()
    buffer = CudaBuffer(Driver, np.zeros(8, np.uint8))
    given = [buffer if one is None else one for one in arguments]
    with pytest.raises(CudaError):
        kernel.prepare(global_size=(64,), local_size=(64,), arguments=given)
    assert function.launches == []


def test_a_global_size_that_does_not_divide_is_no_launch() -> None:
    kernel, _ = sums()
    buffer = CudaBuffer(Driver, np.zeros(8, np.uint8))
    with pytest.raises(CudaError, match="local size"):
        kernel.prepare(
            global_size=(100,), local_size=(64,), arguments=[buffer, 4, b"\x00", 4, VECTOR]
        )


def test_buffers_are_written_copied_and_read() -> None:
    first = CudaBuffer(Driver, np.arange(8, dtype=np.uint8))
    second = CudaBuffer(Driver, np.zeros(16, np.uint8))
    second.copy_from(first)
    assert second.read(10) == bytes(range(8)) + bytes(2)
    second.write(np.full(2, 9, np.uint8))
    assert second.read(3) == b"\x09\x09\x02"
    assert CudaBuffer(Driver, np.zeros(0, np.uint8)).read(0) == b""
    with pytest.raises(CudaError, match="out of memory"):
        CudaBuffer(Driver, np.zeros(2**21, np.uint8))


@pytest.mark.parametrize("spin_ns", [0, 70_000])
def test_launches_are_timed_between_events_behind_a_busy_gpu(spin_ns: int) -> None:
    kernel, _ = sums()
    spin = Function("spin")
    clock = EventClock(Driver, CudaKernel(Driver, SPIN_PTX.entry("spin"), spin))
    buffer = CudaBuffer(Driver, np.zeros(8, np.uint8))
    launch = kernel.prepare(
        global_size=(64,), local_size=(64,), arguments=[buffer, 4, b"\x00", 4, VECTOR]
    )
    assert clock.time_ns(launch, 5, spin_ns=spin_ns) == 0.5e6 / 5
    before = ["synchronize", "spin"] if spin_ns else ["synchronize"]
    assert calls == [*before, "record", *["sums"] * 5, "record", "wait"]
    if spin_ns:
        packed = spin.launches[0][2]
        assert isinstance(packed, bytes)
        assert packed[8:] == struct.pack("<Q", spin_ns)


def test_unwritten_logs_of_the_driver_are_an_error_of_cudas() -> None:
    with pytest.raises(CudaError, match="UnicodeDecodeError"), cuda_errors(Driver):
        b"\xff".decode()


def test_without_pycuda_or_a_gpu_there_is_no_context() -> None:
    with pytest.raises(CudaError):
        CudaContext("00000000-0000-0000-0000-000000000001")
