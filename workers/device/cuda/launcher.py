"""Buffers, launches and event times on a CUDA context that ``cuda/driver.py`` has opened.

Passes arguments to a kernel, and decides what runs between two events. Gets pycuda's driver from
``cuda/driver.py``. Times no samples: it serves comparisons with OpenCL and, later, hardware
counters.
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
"""PTX of a kernel that keeps one multiprocessor busy for a given number of ns. Commands that are
enqueued meanwhile then run without gaps."""


class CudaError(Exception):
    """CUDA cannot be used: no pycuda, no such device, an invalid program, or a failed launch."""


@contextlib.contextmanager
def cuda_errors(driver: Any) -> Iterator[None]:
    """Turn any error of pycuda into a CudaError.

    This includes a UnicodeDecodeError: pycuda decodes log buffers that the driver has not filled.
    """
    try:
        yield
    except (driver.Error, UnicodeDecodeError) as error:
        raise CudaError(f"{type(error).__name__}: {error}") from error


class CudaBuffer:
    """Memory on the GPU that holds ``data`` at first; freed with this object."""

    def __init__(self, driver: Any, data: npt.NDArray[np.uint8]) -> None:
        """Allocate and write. Raises CudaError."""
        self._driver = driver
        self._num_bytes = data.nbytes
        with cuda_errors(driver):
            self._allocation = driver.mem_alloc(max(1, data.nbytes))
        self.write(data)

    @property
    def address(self) -> bytes:
        """The address as a kernel argument: 8 bytes, little-endian."""
        return int(self._allocation).to_bytes(8, "little")

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        """Overwrite the beginning of the buffer. Raises CudaError."""
        with cuda_errors(self._driver):
            if data.nbytes:
                self._driver.memcpy_htod(self._allocation, data)

    def copy_from(self, other: CudaBuffer) -> None:
        """Copy ``other`` to the beginning of this buffer, on the GPU. Raises CudaError."""
        with cuda_errors(self._driver):
            self._driver.memcpy_dtod(self._allocation, other._allocation, other._num_bytes)

    def read(self, num_bytes: int) -> bytes:
        """Wait for all launches, then return the first ``num_bytes`` bytes. Raises CudaError."""
        data = np.empty(num_bytes, np.uint8)
        with cuda_errors(self._driver):
            if num_bytes:
                self._driver.memcpy_dtoh(data, self._allocation)
        return data.tobytes()


class CudaKernel:
    """A loaded kernel; ``function`` is pycuda's object for it."""

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
            global_size: work-items in one to three dimensions; each a multiple of ``local_size``.
            local_size: work-items of a work-group, in as many dimensions.
            arguments: by position: a buffer, the bytes of a scalar, or the number of bytes of a
                ``__local`` argument.

        Raises:
            CudaError: An argument has the wrong kind or size, or the sizes do not divide.
        """
        if any(total % group for total, group in zip(global_size, local_size, strict=True)):
            raise CudaError(
                f"global size {global_size} is not a multiple of local size {local_size}"
            )
        if len(arguments) != len(self.entry.parameters):
            raise CudaError(
                f"{self.entry.name} has {len(self.entry.parameters)} parameters, "
                f"but {len(arguments)} arguments were given"
            )
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
                raise CudaError(f"{argument!r} cannot be passed as {parameter}")
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
        """Launch without waiting for the end. Raises CudaError."""
        with cuda_errors(self._kernel.driver):
            # pycuda's public calls guess argument types and set the shape by a deprecated call.
            self._kernel.function._launch_kernel(*self._call)


class EventClock:
    """Times launches with CUDA events.

    Args:
        driver: pycuda's driver module.
        spinner: the kernel of ``SPIN_PTX``, on the same context.
    """

    def __init__(self, driver: Any, spinner: CudaKernel) -> None:
        self._driver = driver
        self._spinner = spinner
        self._place = CudaBuffer(driver, np.zeros(8, np.uint8))

    def time_ns(self, launch: CudaLaunch, count: int = 1, *, spin_ns: int = 0) -> float:
        """Return the mean time of ``count`` launches between two events, ns.

        Args:
            launch: what to launch.
            count: number of launches, back to back.
            spin_ns: ns for which the GPU is kept busy before the first event, while all launches
                are enqueued. With 0, the time includes the GPU's wait for the host.

        Raises:
            CudaError: A launch failed; the context is lost.
        """
        wait = self._spinner.prepare(
            global_size=(1,),
            local_size=(1,),
            arguments=[self._place, spin_ns.to_bytes(8, "little")],
        )
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
"""The kernel ``spin``, translated like any other program."""
