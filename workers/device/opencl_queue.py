"""A context's profiling queue with LLMPerf's own kernels on it (``fill.cl``).

Owns the queue and every launch that is not a timed kernel: fills, flushes, digests. Buffers of a task and
timed launches are ``opencl_launch``'s.
"""

from __future__ import annotations

import itertools
import logging
import math

import numpy as np
import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Stage
from llmperf_common.records import Device
from workers.device.opencl_errors import cl_errors
from workers.inputs import FillKind, FillSpec

_logger = logging.getLogger(__name__)

_DIGEST_ITEMS_PER_UNIT = 1024


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
        self._flush_buffer: cl.Buffer | None = None
        self._flush_keys = itertools.count(1)
        self._has_own_work = False
        self.own_local_size = min(64 if cl_device.type & cl.device_type.CPU else 256,
                                  device.max_work_group_size)  # fmt: skip

    def new_kernel(self, name: str) -> cl.Kernel:
        """Return one of fill.cl's kernels as an object of the caller's own: its arguments stay set."""
        return cl.Kernel(self._program, name)

    def own_kernel(self, name: str) -> cl.Kernel:
        """Return one of fill.cl's kernels (one object a name: set its arguments before each use)."""
        if name not in self._kernels:
            self._kernels[name] = cl.Kernel(self._program, name)
        return self._kernels[name]

    def allocate(self, num_bytes: int) -> cl.Buffer:
        """Allocate a device buffer. Raises DeviceFailure (out_of_memory)."""
        with cl_errors(Stage.LAUNCH):
            return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, num_bytes)

    def enqueue_own(self, kernel: cl.Kernel, num_items: int) -> cl.Event:
        """Enqueue one of our kernels over ``num_items``, rounded up to whole work-groups."""
        local = self.own_local_size
        total = math.ceil(max(num_items, 1) / local) * local
        self._has_own_work = True
        return cl.enqueue_nd_range_kernel(self.queue, kernel, (total,), (local,))

    def time_launch(self, kernel: cl.Kernel, num_items: int) -> float:
        """Launch one of our kernels and return its device time, ns."""
        event = self.enqueue_own(kernel, num_items)
        event.wait()
        return float(event.profile.end - event.profile.start)

    def settle(self) -> None:
        """Wait for fills and flushes, so that every timed launch starts on an idle device.

        Queued behind other work a launch looks shorter: on an H200 3.6 us against 5.4 us for vadd of
        1,024 elements, so kernels that need refills would seem faster than those that do not.
        """
        if self._has_own_work:
            self.queue.finish()
            self._has_own_work = False

    def fill(self, buffer: cl.Buffer, kind: FillKind, num_scalars: int, key: int) -> None:
        """Enqueue filling ``num_scalars`` of ``kind`` without a content rule."""
        self.fill_by(buffer, FillSpec(kind=kind, key=key, num_scalars=num_scalars))

    def fill_by(self, buffer: cl.Buffer, spec: FillSpec) -> None:
        """Enqueue the fill kernel of ``spec``."""
        if spec.num_scalars == 0:
            return
        limit = spec.contents.limit if spec.contents else 0
        place = (spec.place.offset, spec.place.stride, spec.place.count) if spec.place else ()
        kernel = self.own_kernel(spec.kernel_name)
        kernel.set_args(
            buffer,
            np.uint64(spec.num_scalars),
            np.uint32(spec.key),
            np.uint64(limit),
            *map(np.uint64, place),
        )
        self.enqueue_own(kernel, spec.num_scalars)

    def fill_bytes(self, buffer: cl.Buffer, byte: int, *, num_bytes: int, start: int = 0) -> None:
        """Enqueue writing ``byte`` to ``num_bytes`` bytes from ``start``."""
        pattern = np.array([byte], dtype=np.uint8)
        self._has_own_work = True
        cl.enqueue_fill_buffer(self.queue, buffer, pattern, start, num_bytes)

    def flush_cache(self) -> None:
        """Write twice the last-level cache, at most a quarter of what one allocation may have."""
        if self._flush_buffer is None:
            num_bytes = 2 * self.device.last_level_cache_bytes
            limit = self.device.max_allocation_bytes // 4
            self._flush_buffer = self.allocate(max(4096, min(num_bytes, limit)))
            self._enqueue_flush(
                self._flush_buffer
            )  # first touch of its pages, first use of its kernel
            self.queue.finish()
        self._enqueue_flush(self._flush_buffer)

    def _enqueue_flush(self, buffer: cl.Buffer) -> None:
        quads = buffer.size // 16
        kernel = self.own_kernel("flush")
        kernel.set_args(buffer, np.uint64(quads), np.uint32(next(self._flush_keys)))
        self.enqueue_own(kernel, quads)

    def digest(self, buffer: cl.Buffer, num_bytes: int) -> str:
        """Return a hash of the buffer's first ``num_bytes`` (rounded up to words) as 16 hex digits."""
        sums = np.zeros(2, dtype=np.uint32)
        words = (num_bytes + 3) // 4
        device_sums = self.allocate(sums.nbytes)
        cl.enqueue_copy(self.queue, device_sums, sums)
        kernel = self.own_kernel("digest")
        kernel.set_args(buffer, np.uint64(words), device_sums)
        self.enqueue_own(kernel, min(words, self.device.compute_units * _DIGEST_ITEMS_PER_UNIT))
        cl.enqueue_copy(self.queue, sums, device_sums)
        device_sums.release()
        return sums.tobytes().hex()

    def read(self, buffer: cl.Buffer, num_bytes: int) -> bytes:
        """Return the buffer's first ``num_bytes``."""
        data = np.empty(num_bytes, dtype=np.uint8)
        cl.enqueue_copy(self.queue, data, buffer)
        return data.tobytes()

    def close(self) -> None:
        """Wait for the queue, then free what it owns; a context that is already lost is only logged."""
        try:
            self.queue.finish()
            if self._flush_buffer is not None:
                self._flush_buffer.release()
        except cl.Error as error:  # its failure was reported when it happened
            _logger.warning("closing a lost context: %s", error)
        self._flush_buffer = None
        self._kernels.clear()
