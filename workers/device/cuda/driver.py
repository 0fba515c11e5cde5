"""The only module that imports pycuda: it loads OpenCL's PTX through the CUDA driver.

Owns CUDA contexts and modules, for facts that OpenCL does not give. ``ptx.py`` interprets the PTX,
``occupancy.py`` computes occupancy, ``cuda/launcher.py`` launches.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import time
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from llmperf_common.builds import KernelResources
from workers.device.cuda.launcher import (
    SPIN_PTX,
    CudaBuffer,
    CudaError,
    CudaKernel,
    EventClock,
    cuda_errors,
)
from workers.device.cuda.occupancy import Multiprocessor, occupancy
from workers.device.cuda.ptx import CudaPtx, UnsupportedPtxError, translate
from workers.device.cuda.ptxas_log import notes_on

USUAL_WORK_GROUP_SIZE = 256
"""Work-group size for which occupancy is computed if the kernel requires none. NVIDIA's OpenCL
allows no larger work-group for such a kernel."""

_JIT_LOG_VERBOSE = 12  # CU_JIT_LOG_VERBOSE: pycuda 2026.1 has no name for it but takes any number
_UUID_BYTES = 16


class CudaContext:
    """An open CUDA context on the GPU with this UUID; a process may have only one.

    Close the context before the process ends, because pycuda aborts a process with an open context.
    """

    def __init__(self, device_uuid: str) -> None:
        """Open the device. Raises CudaError."""
        self._driver = _pycuda_driver()
        with self._errors():
            with _without_compile_cache():
                self._driver.init()
            device = self._driver.Device(_ordinal_of(device_uuid))
            self.multiprocessor = self._multiprocessor_of(device)
            self._context = device.make_context()
        self._nonces = itertools.count()

    def resources(
        self, binary: bytes, kernel_name: str, *, work_dim: int, work_group_size: int | None = None
    ) -> KernelResources:
        """Compile an OpenCL binary's PTX again, and return the resources of the machine code.

        Args:
            binary: the program binary that ``clGetProgramInfo`` returns.
            kernel_name: one of its kernels.
            work_dim: number of dimensions of the NDRange.
            work_group_size: work-group size for which to compute the occupancy; None:
                ``USUAL_WORK_GROUP_SIZE``, or the kernel's maximum if that is lower.

        Raises:
            CudaError: CUDA does not accept the program.
        """
        started_s = time.perf_counter()
        module, log = self._load(_translated(binary, work_dim=work_dim))
        with self._errors():
            attribute = self._driver.function_attribute
            ask = module.get_function(kernel_name).get_attribute
            registers, shared_bytes = ask(attribute.NUM_REGS), ask(attribute.SHARED_SIZE_BYTES)
            most = ask(attribute.MAX_THREADS_PER_BLOCK)
            local_bytes = ask(attribute.LOCAL_SIZE_BYTES)
        group = work_group_size or min(USUAL_WORK_GROUP_SIZE, most)
        held = occupancy(
            self.multiprocessor,
            registers=registers,
            shared_bytes=shared_bytes,
            work_group_size=group,
            max_work_group_size=most,
        )
        return KernelResources(
            registers=registers,
            spill_bytes=notes_on(log, kernel_name).spill_store_bytes,
            local_bytes=local_bytes,
            shared_bytes=shared_bytes,
            max_work_group_size=most,
            occupancy=held.share if held else None,
            occupancy_work_group_size=group,
            occupancy_limits=held.limited_by if held else (),
            seconds=time.perf_counter() - started_s,
        )

    def load(self, binary: bytes, kernel_name: str, *, work_dim: int) -> CudaKernel:
        """Return a kernel of an OpenCL binary, ready to be launched. Raises CudaError."""
        return self._kernel(_translated(binary, work_dim=work_dim, for_launch=True), kernel_name)

    def upload(self, data: npt.NDArray[np.uint8]) -> CudaBuffer:
        """Return a new buffer that holds ``data``. Raises CudaError."""
        return CudaBuffer(self._driver, data)

    def event_clock(self) -> EventClock:
        """Return a clock that times launches by events. Raises CudaError."""
        return EventClock(self._driver, self._kernel(SPIN_PTX, "spin"))

    def synchronize(self) -> None:
        """Wait for all launches. Raises CudaError if one failed; the context is then lost."""
        with self._errors():
            self._context.synchronize()

    def free_bytes(self) -> int:
        """Return the bytes of the GPU's free memory. Raises CudaError."""
        with self._errors():
            free, _ = self._driver.mem_get_info()
        return int(free)

    def close(self) -> None:
        """Close the context, whatever state it is in."""
        for end in (self._context.pop, self._context.detach):
            with contextlib.suppress(self._driver.Error):
                end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self, ptx: CudaPtx) -> tuple[Any, str]:
        """Return the module and its compiler's log."""
        # For a program in the driver's cache the log is empty, so each program is made unique.
        fresh = f"// {os.getpid()} {time.time_ns()} {next(self._nonces)}\n".encode() + ptx.image
        said: list[str] = []
        with self._errors():
            module = self._driver.module_from_buffer(
                fresh,
                options=[(self._driver.jit_option(_JIT_LOG_VERBOSE), 1)],
                message_handler=lambda _ok, info, _error: said.append(info),
            )
        return module, "".join(said)

    def _kernel(self, ptx: CudaPtx, name: str) -> CudaKernel:
        try:
            entry = ptx.entry(name)
        except UnsupportedPtxError as error:
            raise CudaError(str(error)) from error
        module, _ = self._load(ptx)
        with self._errors():
            return CudaKernel(self._driver, entry, module.get_function(name))

    def _multiprocessor_of(self, device: Any) -> Multiprocessor:
        name, ask = self._driver.device_attribute, device.get_attribute
        return Multiprocessor(
            compute_capability=(
                ask(name.COMPUTE_CAPABILITY_MAJOR),
                ask(name.COMPUTE_CAPABILITY_MINOR),
            ),
            warp_size=ask(name.WARP_SIZE),
            max_work_items=ask(name.MAX_THREADS_PER_MULTIPROCESSOR),
            max_work_groups=ask(name.MAX_BLOCKS_PER_MULTIPROCESSOR),
            max_work_group_size=ask(name.MAX_THREADS_PER_BLOCK),
            registers=ask(name.MAX_REGISTERS_PER_MULTIPROCESSOR),
            registers_per_work_group=ask(name.MAX_REGISTERS_PER_BLOCK),
            shared_bytes=ask(name.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
            shared_bytes_per_work_group=ask(name.MAX_SHARED_MEMORY_PER_BLOCK),
            reserved_shared_bytes=ask(name.RESERVED_SHARED_MEMORY_PER_BLOCK),
        )

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return cuda_errors(self._driver)


def _translated(binary: bytes, *, work_dim: int, for_launch: bool = False) -> CudaPtx:
    try:
        return translate(binary, work_dim=work_dim, for_launch=for_launch)
    except UnsupportedPtxError as error:
        raise CudaError(f"PTX: {error}") from error


def _pycuda_driver() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pycuda import driver  # noqa: PLC0415, TID251  (loads the CUDA driver)
    except (ImportError, OSError) as error:
        raise CudaError(f"pycuda cannot be loaded: {error}") from error
    return driver


@contextlib.contextmanager
def _without_compile_cache() -> Iterator[None]:
    """Let a driver that starts here use no disk cache: its code would displace OpenCL's code."""
    name = "CUDA_CACHE_DISABLE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _ordinal_of(device_uuid: str) -> int:
    """Return the GPU's number in this process's CUDA driver; raises CudaError if it has none.

    The numbers of other libraries may differ, and pycuda cannot find a GPU by its UUID.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(str(error)) from error
    count, device = ctypes.c_int(), ctypes.c_int()
    uuid = (ctypes.c_ubyte * _UUID_BYTES)()
    seen = []
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        raise CudaError("cuDeviceGetCount failed")
    for ordinal in range(count.value):
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
            cuda.cuDeviceGetUuid(uuid, device)
            seen.append(bytes(uuid).hex())
            if seen[-1] == device_uuid.replace("-", ""):
                return ordinal
    raise CudaError(f"the CUDA driver sees no GPU {device_uuid}, only {seen}")
