"""One launch config in place on an OpenCL device: refills, launches, and their results.

Owns ``OpenclLauncher``. ``opencl/buffers.py`` owns the buffers, and ``workers/measure/timing.py``
decides how often a config is launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyopencl as cl  # noqa: TID251

from llmperf_common.analysis import Contents
from llmperf_common.failures import Stage
from llmperf_common.records import Access, Argument, LaunchConfig
from workers.device.opencl.errors import cl_errors, failure_of
from workers.device.opencl.queue import DeviceQueue, OwnLaunch
from workers.plan.inputs import fill_specs

AT_ONCE = 10  # launches of a short kernel that are enqueued together
_AT_ONCE_BELOW_NS = 9_000.0
"""Launches shorter than this number of ns are enqueued several at a time. To enqueue one launch
takes 14 µs, so each launch has ended before the next one is enqueued."""
_AT_ONCE_REFILL_BYTES = 2**21
"""Maximum bytes that are refilled before each launch if several are enqueued at a time. Refilling
more bytes would take longer than the launch itself."""
IDLE_NS = 3_000
"""Minimum number of ns for which the device must be idle before a launch whose time is used. On an
H200 the gap is 1,300 ns between queued launches, and 5,000 ns or more if the device waits for the
host. After such a long gap, event times are the same as when the host waits for each launch."""

_WRITTEN = (Access.WRITE, Access.READ_WRITE)
_START, _END = cl.profiling_info.START, cl.profiling_info.END


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBuffer:
    """One global or constant buffer of the current config; ``num_bytes`` excludes its guard."""

    argument: Argument
    buffer: cl.Buffer
    elements: int
    num_bytes: int
    guard_bytes: int
    contents: Contents | None


class OpenclLauncher:
    """One launch config in place on the device, valid until the next ``prepare`` of its kernel."""

    def __init__(
        self,
        *,
        queue: DeviceQueue,
        cl_kernel: cl.Kernel,
        config: LaunchConfig,
        buffers: Sequence[PlacedBuffer],
    ) -> None:
        self._queue = queue
        self._cl_kernel = cl_kernel
        self._is_retired = False
        self._config = config
        self._buffers = buffers
        self._written = [item for item in buffers if item.argument.access in _WRITTEN]
        self._fills: dict[int, tuple[OwnLaunch, ...]] = {}
        self._fill_seed: int | None = None
        self._needs_refill = any(item.argument.access is Access.READ_WRITE for item in buffers)

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all global and constant buffers of this config."""
        return sum(item.num_bytes for item in self._buffers)

    @property
    def needs_refill(self) -> bool:
        """Whether the kernel reads a buffer that it writes."""
        return self._needs_refill

    def refill(self, *, seed: int, everything: bool = False) -> None:
        """Restore the written buffers (``everything``: all) to the inputs of ``seed``; untimed.

        The zeros behind a buffer are restored, too (behind structures only at a config's first
        refill). Otherwise the inputs of a larger config would remain behind a smaller buffer.
        """
        self._require_current()
        with cl_errors(Stage.LAUNCH):
            self._enqueue_refill(seed, everything=everything)

    def _enqueue_refill(self, seed: int, *, everything: bool = False) -> cl.Event | None:
        """Enqueue the fills; return the last fill's event, None if there is nothing to fill."""
        if seed != self._fill_seed:
            self._fills = {
                item.argument.position: self._prepare_fills(item, seed) for item in self._buffers
            }
            self._fill_seed = seed
        last: cl.Event | None = None
        for item in self._buffers if everything else self._written:
            for launch in self._fills[item.argument.position]:
                last = launch.enqueue()
        return last

    def _prepare_fills(self, item: PlacedBuffer, seed: int) -> tuple[OwnLaunch, ...]:
        argument = item.argument
        specs = fill_specs(argument, elements=item.elements, seed=seed, contents=item.contents)
        launches = []
        for number, spec in enumerate(specs):
            num_zeros = 0
            if spec.place is None:
                num_zeros = item.guard_bytes // spec.scalar_bytes
            elif number == 0 and item.guard_bytes:
                self._queue.fill_bytes(
                    item.buffer, 0, start=item.num_bytes, num_bytes=item.guard_bytes
                )
            if spec.num_scalars + num_zeros:
                launches.append(
                    self._queue.prepared_fill(
                        item.buffer, spec, slot=(argument.position, number), num_zeros=num_zeros
                    )
                )
        return tuple(launches)

    def launch(self, count: int = 1) -> float:
        """Launch ``count`` times back to back; return the mean device time of one launch, ns.

        The time runs from the first start to the last end, so it includes gaps between launches.
        """
        self._require_current()
        config, queue, kernel = self._config, self._queue.queue, self._cl_kernel
        global_size, local_size = config.global_size, config.local_size
        is_waiting = True
        try:
            self._queue.settle()
            is_waiting = False
            first = last = cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
            for _ in range(count - 1):
                last = cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
            is_waiting = True
            last.wait()
            return (_stamp_ns(last, _END) - _stamp_ns(first, _START)) / count
        except cl.Error as error:
            raise failure_of(error, stage=Stage.LAUNCH, waiting=is_waiting) from error

    def num_at_once(self, estimate_ns: float) -> int:
        """Return how many launches of this length to enqueue at once.

        The number is 1 on a CPU device, where launches enqueued together would wait in the queue.
        """
        if not self._queue.is_gpu or estimate_ns > _AT_ONCE_BELOW_NS:
            return 1
        if self.needs_refill:
            refilled_bytes = sum(item.num_bytes for item in self._written)
            return AT_ONCE if refilled_bytes <= _AT_ONCE_REFILL_BYTES else 1
        return AT_ONCE

    def launch_each(self, count: int, *, refill_seed: int) -> list[float]:
        """Enqueue ``count`` launches without waiting for each; return at most ``count`` times, ns.

        The result has no time of a launch that began less than ``IDLE_NS`` after the end of the
        command before it (a refill or a launch), because the device was not idle.
        """
        self._require_current()
        config, queue, kernel = self._config, self._queue.queue, self._cl_kernel
        global_size, local_size = config.global_size, config.local_size
        needs_refill = self.needs_refill
        pairs: list[tuple[cl.Event | None, cl.Event]] = []
        before: cl.Event | None = None
        is_waiting = True
        try:
            self._queue.settle()
            is_waiting = False
            for _ in range(count):
                if needs_refill:
                    before = self._enqueue_refill(refill_seed) or before
                event = cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
                pairs.append((before, event))
                before = event
            is_waiting = True
            pairs[-1][1].wait()
            self._queue.note_settled()
            times_ns = []
            for before, event in pairs:
                start_ns = _stamp_ns(event, _START)
                if before is None or start_ns - _stamp_ns(before, _END) >= IDLE_NS:
                    times_ns.append(float(_stamp_ns(event, _END) - start_ns))
        except cl.Error as error:
            raise failure_of(error, stage=Stage.LAUNCH, waiting=is_waiting) from error
        return times_ns

    def flush_cache(self) -> None:
        """Write twice the size of the last-level cache, so that the next launch starts cold."""
        with cl_errors(Stage.LAUNCH):
            self._queue.flush_cache()

    def poison_output(self, byte: int) -> None:
        """Fill the buffers that the kernel only writes with ``byte``."""
        self._require_current()
        with cl_errors(Stage.LAUNCH):
            for item in self._written:
                if item.argument.access is Access.WRITE and item.num_bytes:
                    self._queue.fill_bytes(item.buffer, byte, num_bytes=item.num_bytes)

    def output_digest(self) -> str:
        """Return a hash over the contents of all buffers that the kernel may write."""
        self._require_current()
        with cl_errors(Stage.LAUNCH, waiting=True):
            return "".join(
                self._queue.digest(item.buffer, item.num_bytes) for item in self._written
            )

    def retire(self) -> None:
        """Invalidate this launcher, because its kernel and buffers now serve another config."""
        self._is_retired = True

    def _require_current(self) -> None:
        if self._is_retired:
            raise RuntimeError(
                "a launcher was used after its kernel was prepared for another config"
            )


def _stamp_ns(event: cl.Event, which: cl.profiling_info) -> int:
    stamp = event.get_profiling_info(which)
    assert isinstance(stamp, int), "an event's stamps are whole nanoseconds"
    return stamp
