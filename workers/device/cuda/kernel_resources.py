"""Finding out, in a compile child, what a kernel's machine code needs of an NVIDIA GPU.

Owns when a CUDA context is opened (at the first kernel, not before) and what the second compiler may cost: a time limit
of its own, beyond which the process ends. Its death costs the kernel nothing: ``compiling.py`` builds it once more and
asks for no resources. CUDA itself: ``driver.py``.
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
    """Reads resources on the device that ``ref`` names; closes what it opened."""

    def __init__(self, ref: DeviceRef) -> None:
        self._ref = ref
        self._context: CudaContext | None = None
        self._no_context = ""

    def read(self, kernel: Kernel, binary: bytes, *, limit_s: float) -> KernelResources | str:
        """Return what ``kernel``, built as ``binary``, needs, or in a sentence why that is not known.

        After ``limit_s`` seconds the process ends by SIGALRM: a compiler that hangs listens to nothing else.
        """
        from workers.device.cuda.launcher import CudaError  # noqa: PLC0415  (only where it is asked for)

        signature = kernel.signature
        if self._no_context or signature is None:
            return self._no_context or "the kernel has no signature"
        with ended_after(limit_s):
            try:
                if self._context is None:
                    self._context = self._opened()
            except (CudaError, LookupError) as error:
                self._no_context = str(error)  # it will not be there for the next kernel either
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
    """End the process by SIGALRM if the block takes longer, whatever it does and whichever lock it holds."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
