"""Find, in a compile child, which resources of an NVIDIA GPU a kernel's machine code needs.

Decides when a CUDA context is opened (for the first kernel, not before), and owns the time limit of
the second compilation. The process ends at this limit, but the kernel loses only its resource
figures, because ``compiling.py`` builds it again without asking for them. ``driver.py`` calls CUDA.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from llmperf_common.builds import KernelResources
from llmperf_common.records import Kernel
from workers.device.interface import DeviceRef

if TYPE_CHECKING:
    from workers.device.cuda.driver import CudaContext


class ResourceReader:
    """Reads resources on the device ``ref``; a context manager that closes its CUDA context."""

    def __init__(self, ref: DeviceRef) -> None:
        self._ref = ref
        self._context: CudaContext | None = None
        self._no_context = ""

    def read(self, kernel: Kernel, binary: bytes, *, limit_s: float) -> KernelResources | str:
        """Return the resources of ``kernel``, built as ``binary``, or why they are not known.

        SIGALRM ends the process after ``limit_s`` seconds, because nothing else stops a hung
        compiler.
        """
        from workers.device.cuda.launcher import CudaError  # noqa: PLC0415  (loaded only if needed)

        signature = kernel.signature
        if self._no_context or signature is None:
            return self._no_context or "the kernel has no signature"
        with ended_after(limit_s):
            try:
                if self._context is None:
                    self._context = self._opened()
            except (CudaError, LookupError) as error:
                self._no_context = str(error)  # the next kernel would meet the same error
                return self._no_context
            required = signature.required_local_size
            try:
                return self._context.resources(
                    binary,
                    kernel.name,
                    work_dim=signature.dims,
                    work_group_size=math.prod(required) if required else None,
                )
            except CudaError as error:
                return str(error)

    def _opened(self) -> CudaContext:
        from workers.device.cuda.driver import CudaContext  # noqa: PLC0415
        from workers.device.opencl.device import device_uuid, find_cl_device  # noqa: PLC0415

        uuid = device_uuid(find_cl_device(self._ref))
        if uuid is None:
            raise LookupError(f"{self._ref.name} has no UUID by which CUDA could find it")
        return CudaContext(uuid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._context is not None:
            self._context.close()


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End this process by SIGALRM if the ``with`` block takes longer, even if a library hangs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
