"""Buffers, launches and event times on a CUDA context that ``cuda/driver.py`` has opened.

Owns how arguments reach a kernel and what lies between two events. Knows pycuda's driver only as the object that the
door hands out. No sample is timed here: it is for comparison with OpenCL and, later, for hardware counters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.device.cuda.ptx import LOCAL_ALIGNMENT_BYTES, Entry, ParameterSpace, translate

_MILLISECOND_NS = 1e6
_SPIN = b""".version 6.4
.target sm_70
.address_size 64
.entry spin(.param .u64 .ptr .global .align 8 spin_param_0, .param .u64 spin_param_1)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [spin_param_1];
    mov.u64 %rd2, %globaltimer;
turn:
    mov.u64 %rd3, %globaltimer;
    sub.s64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra turn;
    ld.param.u64 %rd5, [spin_param_0];
    st.global.u64 [%rd5], %rd4;
    ret;
}
"""
"""PTX of a kernel that keeps one multiprocessor busy for a given number of ns, so that commands
enqueued meanwhile run without a gap."""


class CudaError(Exception):
    """CUDA cannot do it: no pycuda, no such device, a program it does not take, a launch that failed."""


@contextlib.contextmanager
def cuda_errors(driver: Any) -> Iterator[None]:
    """Turn any error of pycuda's into a CudaError.

    A UnicodeDecodeError, too: where the driver has left its log buffers unwritten, pycuda reads what lay there.
    """
    try:
        yield
    except (driver.Error, UnicodeDecodeError) as error:
        raise CudaError(f"{type(error).__name__}: {error}") from error


class CudaBuffer:
    """Memory on the GPU that begins with ``data``, freed with this object."""

    def __init__(self, driver: Any, data: npt.NDArray[np.uint8]) -> None:
        """Allocate and write. Raises CudaError."""
        self._driver = driver
        self._num_bytes = data.nbytes
        with cuda_errors(driver):
            self._allocation = driver.mem_alloc(max(1, data.nbytes))
        self.write(data)

    @property
    def address(self) -> bytes:
        """As a kernel's argument."""
        return int(self._allocation).to_bytes(8, "little")

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        """Overwrite the buffer's beginning. Raises CudaError."""
        with cuda_errors(self._driver):
            if data.nbytes:
                self._driver.memcpy_htod(self._allocation, data)

    def copy_from(self, other: CudaBuffer) -> None:
        """Overwrite the beginning with all of another buffer, on the GPU. Raises CudaError."""
        with cuda_errors(self._driver):
            self._driver.memcpy_dtod(self._allocation, other._allocation, other._num_bytes)

    def read(self, num_bytes: int) -> bytes:
        """Return the first bytes, after all launches. Raises CudaError."""
        data = np.empty(num_bytes, np.uint8)
        with cuda_errors(self._driver):
            if num_bytes:
                self._driver.memcpy_dtoh(data, self._allocation)
        return data.tobytes()


class CudaKernel:
    """A loaded kernel; ``function`` is pycuda's."""

    def __init__(self, driver: Any, entry: Entry, function: Any) -> None:
        self.driver = driver
        self.entry = entry
        self.function = function

    def prepare(
        self,
        *,
        global_size: Sequence[int],
        local_size: Sequence[int],
        arguments: Sequence[CudaBuffer | bytes | int],
    ) -> CudaLaunch:
        """Return a launch of this kernel.

        Args:
            global_size: work-items, a multiple of ``local_size`` in each of one to three dimensions.
            local_size: work-items of a work-group.
            arguments: by position: a buffer, the bytes of a scalar or, for a ``__local`` one, how many bytes it has.

        Raises:
            CudaError: An argument is not of the parameter's kind or size, or the sizes do not divide.
        """
        if any(total % group for total, group in zip(global_size, local_size, strict=True)):
            raise CudaError(f"global size {global_size}, local size {local_size}")
        if len(arguments) != len(self.entry.parameters):
            raise CudaError(f"{self.entry.name}: {len(arguments)} arguments")
        values: list[bytes] = []
        shared_bytes = 0
        for parameter, argument in zip(self.entry.parameters, arguments, strict=True):
            if isinstance(argument, int):
                fits = parameter.space is ParameterSpace.SHARED
                values.append(shared_bytes.to_bytes(parameter.num_bytes, "little"))
                shared_bytes += -(-argument // LOCAL_ALIGNMENT_BYTES) * LOCAL_ALIGNMENT_BYTES
            elif isinstance(argument, CudaBuffer):
                fits = parameter.space in (ParameterSpace.GLOBAL, ParameterSpace.CONSTANT)
                values.append(argument.address)
            else:
                fits = parameter.space is ParameterSpace.VALUE
                values.append(argument)
            if not fits or len(values[-1]) != parameter.num_bytes:
                raise CudaError(f"{argument!r} for {parameter}")
        return CudaLaunch(
            kernel=self,
            num_groups=tuple(n // m for n, m in zip(global_size, local_size, strict=True)),
            local_size=tuple(local_size),
            arguments=tuple(arguments),
            packed=self.entry.pack(values),
            shared_bytes=shared_bytes,
        )


class CudaLaunch:
    """A kernel with its NDRange and arguments; keeps the buffers alive."""

    def __init__(
        self,
        *,
        kernel: CudaKernel,
        num_groups: tuple[int, ...],
        local_size: tuple[int, ...],
        arguments: tuple[CudaBuffer | bytes | int, ...],
        packed: bytes,
        shared_bytes: int,
    ) -> None:
        self.arguments = arguments
        self._kernel = kernel
        self._call = (num_groups, local_size, packed, shared_bytes, None)

    def enqueue(self) -> None:
        """Launch without waiting. Raises CudaError."""
        with cuda_errors(self._kernel.driver):
            # Below pycuda's own calls: these guess the arguments' types, and set the shape by a deprecated function.
            self._kernel.function._launch_kernel(*self._call)


class EventClock:
    """Times launches by CUDA events.

    Args:
        driver: pycuda's.
        spinner: the kernel of ``SPIN_PTX``, on the same context.
    """

    def __init__(self, driver: Any, spinner: CudaKernel) -> None:
        self._driver = driver
        self._spinner = spinner
        self._place = CudaBuffer(driver, np.zeros(8, np.uint8))

    def time_ns(self, launch: CudaLaunch, count: int = 1, *, spin_ns: int = 0) -> float:
        """Return the mean time of ``count`` launches by events around all of them, ns.

        Args:
            launch: what to launch.
            count: how often, back to back.
            spin_ns: keep the GPU busy for so long before the first event, while all is enqueued. Without it the GPU
                waits between event and launch for the host, and that is measured, too.

        Raises:
            CudaError: A launch failed; the context is of no further use.
        """
        wait = self._spinner.prepare(
            global_size=(1,), local_size=(1,), arguments=[self._place, spin_ns.to_bytes(8, "little")]
        )  # fmt: skip
        with cuda_errors(self._driver):
            start, end = self._driver.Event(), self._driver.Event()
            self._driver.Context.synchronize()
            if spin_ns:
                wait.enqueue()
            start.record()
            for _ in range(count):
                launch.enqueue()
            end.record()
            end.synchronize()
            return float(start.time_till(end)) * _MILLISECOND_NS / count


SPIN_PTX = translate(_SPIN, work_dim=1, for_launch=True)
"""The program of the kernel ``spin``: it goes the way of all others."""
