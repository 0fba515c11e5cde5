"""A context's profiling queue with LLMPerf's own kernels on it (``fill.cl``).

Owns the queue and every launch that is not timed: fills, flushes, digests. ``buffers.py`` owns the
buffers of a task, ``launcher.py`` the timed launches.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Stage
from llmperf_common.records import Device
from workers.device.opencl.errors import cl_errors
from workers.device.opencl.freed_memory import CLEARED_BYTES_PER_S, FreedMemory
from workers.device.opencl.kept_buffers import KeptBuffers
from workers.plan.inputs import FillKind, FillSpec

_logger = logging.getLogger(__name__)

_DIGEST_ITEMS_PER_UNIT = 1024
_SET_BYTES_AT_ONCE = 16
_KEPT_SHARE = 1 / 32
"""Share of a GPU's memory that each launching process keeps for its next task."""


def set_scalar(kernel: cl.Kernel, position: int, value: np.generic | npt.NDArray[Any]) -> None:
    """Set an argument that is passed by value.

    ``Kernel.set_arg`` takes any object and first tries three conversions of a number. That takes 14
    µs, as long as a short launch, instead of 0.1 µs. This function calls the private function that
    ``set_arg`` calls in the end, or ``set_arg`` if pyopencl does not have the private function.
    """
    set_bytes = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    set_bytes(position, value)


class OwnLaunch:
    """One of LLMPerf's own kernels with its arguments set, to be launched repeatedly."""

    __slots__ = ("_kernel", "_num_items", "_queue")

    def __init__(self, queue: DeviceQueue, kernel: cl.Kernel, num_items: int) -> None:
        self._queue = queue
        self._kernel = kernel
        self._num_items = num_items

    def enqueue(self) -> cl.Event:
        """Enqueue the kernel once."""
        return self._queue.enqueue_own(self._kernel, self._num_items)


class DeviceQueue:
    """A context's in-order profiling queue and LLMPerf's own kernels on it."""

    def __init__(
        self, *, context: cl.Context, cl_device: cl.Device, device: Device, own_program: cl.Program
    ) -> None:
        self.context = context
        self.cl_device = cl_device
        self.device = device
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(context, device=cl_device, properties=properties)
        self._program = own_program
        self._kernels: dict[str, cl.Kernel] = {}
        self._fill_kernels: dict[tuple[tuple[int, ...], str], cl.Kernel] = {}
        self._flush: tuple[OwnLaunch, cl.Kernel, cl.Buffer] | None = None
        self._flush_keys = itertools.count(1)
        self._digest_sums: cl.Buffer | None = None
        self._has_own_work = False
        self.is_gpu = bool(cl_device.type & cl.device_type.GPU)
        kept_bytes = int(device.global_memory_bytes * _KEPT_SHARE) if self.is_gpu else 0
        self.freed = FreedMemory(CLEARED_BYTES_PER_S if self.is_gpu else None)
        self.kept = KeptBuffers(self.allocate, self.free, max_bytes=kept_bytes)
        is_cpu = bool(cl_device.type & cl.device_type.CPU)
        self.own_local_size = min(64 if is_cpu else 256, device.max_work_group_size)

    def new_kernel(self, name: str) -> cl.Kernel:
        """Return a new object of a kernel in fill.cl; only the caller sets its arguments."""
        return cl.Kernel(self._program, name)

    def own_kernel(self, name: str) -> cl.Kernel:
        """Return the shared object of a kernel in fill.cl; set its arguments before each use."""
        if name not in self._kernels:
            self._kernels[name] = cl.Kernel(self._program, name)
        return self._kernels[name]

    def allocate(self, num_bytes: int) -> cl.Buffer:
        """Allocate a device buffer; raises DeviceFailure (``out_of_memory``)."""
        with cl_errors(Stage.LAUNCH):
            return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, num_bytes)

    def free(self, buffer: cl.Buffer) -> None:
        """Free a device buffer; raises pyopencl.Error if the context is lost."""
        num_bytes = int(buffer.size)
        buffer.release()
        self.freed.note(num_bytes)

    def deepen_private_memory(self) -> None:
        """Make a GPU's context allocate private memory now, before this process takes the lock."""
        if self.is_gpu:
            out = self.allocate(4 * self.own_local_size)
            kernel = self.own_kernel("deep")
            kernel.set_arg(0, out)
            set_scalar(kernel, 1, np.uint32(1))
            self.enqueue_own(kernel, 1)
            self.queue.finish()
            out.release()

    def make_resident(self, buffers: Sequence[cl.Buffer]) -> None:
        """Make a GPU allocate the memory of these buffers now, not at first use; launch nothing.

        Raises:
            DeviceFailure: out_of_memory.
        """
        if self.is_gpu and buffers:
            flags = cl.mem_migration_flags.CONTENT_UNDEFINED
            with cl_errors(Stage.LAUNCH):  # no kernel runs, so the error number names the cause
                cl.enqueue_migrate_mem_objects(self.queue, list(buffers), flags).wait()

    def enqueue_own(self, kernel: cl.Kernel, num_items: int) -> cl.Event:
        """Enqueue one of LLMPerf's kernels over ``num_items``, rounded up to whole work-groups."""
        local = self.own_local_size
        total = math.ceil(max(num_items, 1) / local) * local
        self._has_own_work = True
        return cl.enqueue_nd_range_kernel(self.queue, kernel, (total,), (local,))

    def time_launch(self, kernel: cl.Kernel, num_items: int) -> float:
        """Launch one of LLMPerf's kernels and return its device time, ns."""
        event = self.enqueue_own(kernel, num_items)
        event.wait()
        return float(event.profile.end - event.profile.start)

    def settle(self) -> None:
        """Wait for fills, flushes and clearing, so that a timed launch starts on an idle device.

        A launch that is queued behind other work looks shorter: 3.6 µs instead of 5.4 µs on an H200
        (vadd of 1,024 elements). So kernels that need refills would seem faster than others.
        """
        if self._has_own_work:
            self.queue.finish()
            self._has_own_work = False
        self.freed.await_cleared()

    def note_settled(self) -> None:
        """Note that the last command has ended, so no work of LLMPerf is left on the queue."""
        self._has_own_work = False

    def fill(self, buffer: cl.Buffer, kind: FillKind, num_scalars: int, key: int) -> None:
        """Enqueue a fill with ``num_scalars`` scalars of ``kind`` and no content rule."""
        spec = FillSpec(kind=kind, key=key, num_scalars=num_scalars)
        self.prepared_fill(buffer, spec, slot=()).enqueue()

    def prepared_fill(
        self, buffer: cl.Buffer, spec: FillSpec, *, slot: tuple[int, ...], num_zeros: int = 0
    ) -> OwnLaunch:
        """Return the launch of ``spec``'s fill kernel on ``buffer``.

        The launch is valid until the next call with the same ``slot``. Each slot has its own kernel
        object, so a repeated launch sets no arguments, which would take as long as the launch.

        Args:
            buffer: the buffer to fill.
            spec: the values.
            slot: name of the kernel object.
            num_zeros: number of scalars behind the filled ones to set to 0; must be 0 if ``spec``
                has a place.
        """
        kernel = self._fill_kernels.get((slot, spec.kernel_name))
        if kernel is None:
            kernel = self._fill_kernels[slot, spec.kernel_name] = self.new_kernel(spec.kernel_name)
        limit = spec.contents.limit if spec.contents else 0
        place = spec.place
        tail = (num_zeros,) if place is None else (place.offset, place.stride, place.count)
        # Not set_args: it makes pyopencl generate Python code for each kernel object, in some ms.
        kernel.set_arg(0, buffer)
        set_scalar(kernel, 1, np.uint64(spec.num_scalars))
        set_scalar(kernel, 2, np.uint32(spec.key))
        set_scalar(kernel, 3, np.uint64(limit))
        for position, value in enumerate(tail, start=4):
            set_scalar(kernel, position, np.uint64(value))
        return OwnLaunch(self, kernel, spec.num_scalars + num_zeros)

    def fill_bytes(self, buffer: cl.Buffer, byte: int, *, num_bytes: int, start: int = 0) -> None:
        """Enqueue a write of ``byte`` to ``num_bytes`` bytes from ``start``.

        A GPU uses LLMPerf's own kernel: NVIDIA's driver (580.159) does not return from
        clEnqueueFillBuffer of 2 GiB, and loses the context if the offset is as large. On other
        devices, compiling that kernel would cost each process 0.1 s.
        """
        if not self.is_gpu:
            pattern = np.array([byte], dtype=np.uint8)
            self._has_own_work = True
            cl.enqueue_fill_buffer(self.queue, buffer, pattern, start, num_bytes)
            return
        kernel = self.own_kernel("set_bytes")
        kernel.set_arg(0, buffer)
        set_scalar(kernel, 1, np.uint64(start))
        set_scalar(kernel, 2, np.uint64(num_bytes))
        set_scalar(kernel, 3, np.uint32(byte * 0x01010101))
        self.enqueue_own(kernel, math.ceil(num_bytes / _SET_BYTES_AT_ONCE))

    def flush_cache(self) -> None:
        """Write twice the size of the last-level cache; at most 1/4 of the largest allocation."""
        if self._flush is None:
            self._flush = self._new_flush()
            self._enqueue_flush(*self._flush[:2])  # the first use of the pages and kernel is slow
            self.queue.finish()
        self._enqueue_flush(*self._flush[:2])

    def _new_flush(self) -> tuple[OwnLaunch, cl.Kernel, cl.Buffer]:
        num_bytes = 2 * self.device.last_level_cache_bytes
        limit = self.device.max_allocation_bytes // 4
        buffer = self.allocate(max(4096, min(num_bytes, limit)))
        quads = buffer.size // 16
        kernel = self.new_kernel("flush")
        kernel.set_arg(0, buffer)
        set_scalar(kernel, 1, np.uint64(quads))
        return OwnLaunch(self, kernel, quads), kernel, buffer

    def _enqueue_flush(self, launch: OwnLaunch, kernel: cl.Kernel) -> None:
        set_scalar(kernel, 2, np.uint32(next(self._flush_keys)))
        launch.enqueue()

    def digest(self, buffer: cl.Buffer, num_bytes: int) -> str:
        """Return a hash of the first ``num_bytes``, rounded up to words, as 16 hex digits."""
        sums = np.zeros(2, dtype=np.uint32)
        words = (num_bytes + 3) // 4
        if self._digest_sums is None:
            self._digest_sums = self.allocate(sums.nbytes)
        device_sums = self._digest_sums
        cl.enqueue_copy(self.queue, device_sums, sums)
        kernel = self.own_kernel("digest")
        kernel.set_arg(0, buffer)
        set_scalar(kernel, 1, np.uint64(words))
        kernel.set_arg(2, device_sums)
        self.enqueue_own(kernel, min(words, self.device.compute_units * _DIGEST_ITEMS_PER_UNIT))
        cl.enqueue_copy(self.queue, sums, device_sums)
        return sums.tobytes().hex()

    def read(self, buffer: cl.Buffer, num_bytes: int) -> bytes:
        """Return the buffer's first ``num_bytes``."""
        data = np.empty(num_bytes, dtype=np.uint8)
        cl.enqueue_copy(self.queue, data, buffer)
        return data.tobytes()

    def close(self) -> None:
        """Wait for the queue, then free its buffers; log the error if the context is lost."""
        try:
            self.queue.finish()
            self.kept.drop()
            if self._flush is not None:
                self._flush[2].release()
            if self._digest_sums is not None:
                self._digest_sums.release()
        except cl.Error as error:  # the failure itself has been reported before
            _logger.warning("closing a lost context: %s", error)
        self._flush = self._digest_sums = None
        self._fill_kernels.clear()
        self._kernels.clear()
