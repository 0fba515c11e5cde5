"""Device buffers that outlive their task: the next one takes them over.

Owns which buffers are kept and for whom. Allocating and freeing take locks of NVIDIA's driver that all processes of a host share,
whatever their GPU: while another one opens or closes a context they take 8 ms on average and up to 45 ms, in place of 0.3 (H200,
driver 580.159; launches, copies and loading of programs are not held up).
"""

from __future__ import annotations

from collections.abc import Callable

import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Stage
from workers.device.interface import DeviceFailure
from workers.device.opencl.errors import cl_errors

PAGE_BYTES = 2**21
"""NVIDIA's driver maps whole pages of 2 MiB: rounding up to them takes nothing away, and close sizes share a buffer."""


class KeptBuffers:
    """Gives out buffers and keeps those that come back, the last ones first to stay.

    A kept buffer contains what its last kernel has left: its next user fills it.

    Args:
        allocate: makes a buffer of so many bytes; raises DeviceFailure.
        free: frees one; raises pyopencl.Error where the context is lost.
        max_bytes: most that is kept in all; 0: every buffer is allocated and freed.
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
        """With their sizes, longest kept first."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept now."""
        return sum(size for size, _ in self._kept)

    def take(self, num_bytes: int) -> cl.Buffer:
        """Return a buffer of at least ``num_bytes``: the smallest kept one that is not twice as large, else a new one.

        Raises:
            DeviceFailure: Even without the kept ones there is too little free memory for it.
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
        """Keep a buffer that no kernel uses any more, in place of the longest kept ones where all would be too much.

        Raises:
            pyopencl.Error: The context is lost, and a buffer was to be freed.
        """
        num_bytes = int(buffer.size)
        if num_bytes > self._max_bytes:
            self._free(buffer)
            return
        while self.num_bytes + num_bytes > self._max_bytes:
            self._free(self._kept.pop(0)[1])
        self._kept.append((num_bytes, buffer))

    def drop(self) -> None:
        """Free what is kept.

        Raises:
            pyopencl.Error: The context is lost.
        """
        while self._kept:
            self._free(self._kept.pop()[1])
