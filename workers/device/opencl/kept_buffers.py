"""Device buffers that outlive their task, for the next task to use.

Decides which buffers are kept. Allocating and freeing take locks in NVIDIA's driver that all
processes of a host share, on all its GPUs. While another process opens or closes a context, an
allocation or a free takes 8 ms on average and up to 45 ms instead of 0.3 ms (H200, driver 580.159).
Launches, copies and loading of programs are not delayed.
"""

from __future__ import annotations

from collections.abc import Callable

import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Stage
from workers.device.interface import DeviceFailure
from workers.device.opencl.errors import cl_errors

PAGE_BYTES = 2**21
"""Sizes of kept buffers are multiples of this number of bytes. NVIDIA's driver maps pages of 2 MiB,
so this costs no memory, and tasks that need buffers of similar size can use the same ones."""


class KeptBuffers:
    """Gives out buffers and keeps returned ones; the buffers kept longest are freed first.

    A kept buffer still has the contents from its last kernel, so its next user must fill it.

    Args:
        allocate: returns a buffer of this many bytes; raises DeviceFailure.
        free: frees a buffer; raises pyopencl.Error if the context is lost.
        max_bytes: maximum bytes to keep in all; with 0, every buffer is allocated and freed anew.
    """

    def __init__(
        self,
        allocate: Callable[[int], cl.Buffer],
        free: Callable[[cl.Buffer], None],
        *,
        max_bytes: int,
    ) -> None:
        self._allocate = allocate
        self._free = free
        self._max_bytes = max_bytes
        self._kept: list[tuple[int, cl.Buffer]] = []
        """Pairs of size in bytes and buffer; the one kept longest is first."""

    @property
    def num_bytes(self) -> int:
        """Number of bytes that are kept now."""
        return sum(size for size, _ in self._kept)

    def take(self, num_bytes: int) -> cl.Buffer:
        """Return a buffer of at least ``num_bytes``: a kept one up to twice as large, or a new one.

        Raises:
            DeviceFailure: There is too little memory, even after all kept buffers were freed.
        """
        if not self._max_bytes:
            return self._allocate(num_bytes)
        largest = 2 * num_bytes + PAGE_BYTES
        fitting = [kept for kept in self._kept if num_bytes <= kept[0] <= largest]
        if fitting:
            best = min(fitting, key=lambda kept: kept[0])
            self._kept.remove(best)
            return best[1]
        whole_pages = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        try:
            return self._allocate(whole_pages)
        except DeviceFailure as error:
            if error.sticky:
                raise
            with cl_errors(Stage.LAUNCH):
                self.drop()
            return self._allocate(num_bytes)

    def give_back(self, buffer: cl.Buffer) -> None:
        """Keep a buffer that no kernel uses any more; free those kept longest if needed.

        Raises:
            pyopencl.Error: The context is lost, and a buffer had to be freed.
        """
        num_bytes = int(buffer.size)
        if num_bytes > self._max_bytes:
            self._free(buffer)
            return
        while self.num_bytes + num_bytes > self._max_bytes:
            self._free(self._kept.pop(0)[1])
        self._kept.append((num_bytes, buffer))

    def drop(self) -> None:
        """Free all kept buffers.

        Raises:
            pyopencl.Error: The context is lost.
        """
        while self._kept:
            self._free(self._kept.pop()[1])
