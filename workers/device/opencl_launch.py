"""Buffers and launches of one kernel on an OpenCL device.

Owns the buffers of a task (``OpenclLoadedKernel``) and one launch config in place (``OpenclLauncher``). What a buffer contains is
``workers/inputs.py``'s rule, how often a config is launched ``workers/timing.py``'s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyopencl as cl  # noqa: TID251

from llmperf_common.analysis import Contents
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
)
from workers.device.interface import ROOM_BYTES, DeviceFailure
from workers.device.opencl_errors import cl_errors, failure_of, launch_error, out_of_memory
from workers.device.opencl_queue import DeviceQueue, OwnLaunch, set_scalar
from workers.inputs import fill_specs, is_fillable, pack_scalar

_logger = logging.getLogger(__name__)

GUARD_BYTES = 4096
"""Zeroed room behind every buffer: a kernel that reaches a little too far reads zeros, not its neighbour."""

AT_ONCE = 10
_AT_ONCE_BELOW_NS = 9_000.0
"""Enqueueing takes the driver 14 us a launch on a fast host: a launch this short has ended before the next comes."""
_AT_ONCE_REFILL_BYTES = 2**21
"""So much is filled as fast."""
IDLE_NS = 3_000
"""Between the end of one and the start of the next. Back to back it is 1.3 us on an H200, 5 and more where the device waits
for the host, and then events are as long as of launches that are waited for one by one."""

_RESERVED_SHARE = 0.5
"""Most of the device's memory that is allocated before it is needed."""
_WRITTEN = (Access.WRITE, Access.READ_WRITE)
_START, _END = cl.profiling_info.START, cl.profiling_info.END


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBuffer:
    """One global or constant buffer of the current launch config; ``num_bytes`` without its guard."""

    argument: Argument
    buffer: cl.Buffer
    elements: int
    num_bytes: int
    guard_bytes: int
    contents: Contents | None


class OpenclLoadedKernel:
    """A kernel with the buffers of its task, which grow to the largest config seen and are reused."""

    def __init__(self, *, queue: DeviceQueue, kernel: Kernel, cl_kernel: cl.Kernel) -> None:
        if kernel.signature is None:
            raise ValueError(f"kernel {kernel.name}: it has no signature, so it cannot be launched")
        self.signature = kernel.signature
        self.queue = queue
        self.cl_kernel = cl_kernel
        self.current: OpenclLauncher | None = None
        self._name = kernel.name
        self._buffers: dict[int, cl.Buffer] = {}
        self._is_reserved = False
        for argument in self.signature.arguments:
            _require_supported(argument)
        info = cl.kernel_work_group_info
        with cl_errors(Stage.LAUNCH):
            work_group_info = cl_kernel.get_work_group_info
            self._max_local_items = int(work_group_info(info.WORK_GROUP_SIZE, queue.cl_device))
            driver_local_bytes = int(work_group_info(info.LOCAL_MEM_SIZE, queue.cl_device))
            self._max_constant_bytes = int(queue.cl_device.max_constant_buffer_size)
        if self.signature.required_local_size is not None:
            # NVIDIA's OpenCL says 256 of a kernel that requires 1,024, and launches it.
            required = math.prod(self.signature.required_local_size)
            self._max_local_items = max(self._max_local_items, required)
        self._static_local_bytes = max(driver_local_bytes, self.signature.static_local_bytes)

    def reserve(self, configs: Sequence[LaunchConfig], *, with_room: bool) -> None:
        """Allocate each buffer as large as the largest of these configs needs it, where that fits all together.

        Growing from config to config would free and allocate a dozen times, at a launch's cost or more each. Configs
        that are too large for the device are left to ``prepare``, which refuses them.

        Args:
            configs: those to come.
            with_room: on a GPU also put ``ROOM_BYTES`` of zeros behind each.

        Raises:
            DeviceFailure: The context is lost.
        """
        device = self.queue.device
        largest: dict[int, int] = {}
        for config in configs:
            for argument, given in zip(self.signature.arguments, config.args, strict=True):
                if argument.kind is ArgumentKind.GLOBAL_BUFFER:
                    num_bytes = _padded((given.elements or 0) * argument.element_bytes)
                    if num_bytes <= device.max_allocation_bytes:
                        known = largest.get(argument.position, 0)
                        largest[argument.position] = max(known, num_bytes)
        available = device.global_memory_bytes * _RESERVED_SHARE
        needed = sum(largest.values())
        if needed > available:
            return
        with_room = with_room and self.queue.is_gpu
        with_room = with_room and needed + len(largest) * ROOM_BYTES <= available
        try:
            for position, num_bytes in largest.items():
                if position not in self._buffers:
                    fits = num_bytes + ROOM_BYTES <= device.max_allocation_bytes
                    allocate = (
                        self._allocate_with_room if with_room and fits else self.queue.allocate
                    )
                    self._buffers[position] = allocate(num_bytes)
            self._is_reserved = True
        except DeviceFailure as error:
            if error.sticky:
                raise
            self.release()  # somebody else has the memory: smaller configs may find enough

    def _allocate_with_room(self, num_bytes: int) -> cl.Buffer:
        buffer = self.queue.allocate(num_bytes + ROOM_BYTES)
        with cl_errors(Stage.LAUNCH):
            self.queue.fill_bytes(buffer, 0, start=num_bytes, num_bytes=ROOM_BYTES)
        return buffer

    def prepare(self, config: LaunchConfig) -> OpenclLauncher:
        """Put the arguments of ``config`` in place, every buffer filled with the inputs of its seed.

        The launcher of an earlier config must not be used any more: they share kernel and buffers.

        Raises:
            DeviceFailure: ``launch_error`` (NDRange or argument), ``out_of_memory``.
        """
        if len(config.args) != len(self.signature.arguments):
            raise launch_error(
                f"{self._name} has {len(self.signature.arguments)} arguments, "
                f"the launch config {len(config.args)}"
            )
        self._check_ndrange(config)
        self._check_memory(config)
        try:
            return self._put_in_place(config)
        except DeviceFailure as error:
            if error.failure.code is not FailureCode.OUT_OF_MEMORY or not self._is_reserved:
                raise
            # Drivers may find memory at a buffer's first use only, so what was reserved can be too much after all.
            self.release()
            self._is_reserved = False
            return self._put_in_place(config)

    def _put_in_place(self, config: LaunchConfig) -> OpenclLauncher:
        placed: list[PlacedBuffer] = []
        for argument, given in zip(self.signature.arguments, config.args, strict=True):
            if given.position != argument.position or given.kind is not argument.kind:
                raise launch_error(f"argument {argument.position}: the config has {given}")
            if argument.kind is ArgumentKind.SCALAR:
                self._set_scalar(argument, given.value)
            elif argument.kind is ArgumentKind.LOCAL_BUFFER:
                num_bytes = max(1, (given.elements or 0) * argument.element_bytes)
                with cl_errors(Stage.LAUNCH):
                    local = cl.LocalMemory(num_bytes)
                    self.cl_kernel.set_arg(argument.position, local)  # type: ignore[arg-type]
            else:
                placed.append(self._place(argument, given))
        self.current = OpenclLauncher(owner=self, config=config, buffers=placed)
        self.current.refill(seed=config.seed, everything=True)
        return self.current

    def read_buffer(self, position: int, num_bytes: int) -> bytes:
        """Return the first bytes, guard included, of one argument's buffer."""
        with cl_errors(Stage.CHECK, waiting=True):
            return self.queue.read(self._buffers[position], num_bytes)

    def release(self) -> None:
        """Free the kernel's buffers; where the context is lost they are gone already."""
        self.current = None
        try:
            for buffer in self._buffers.values():
                buffer.release()
        except cl.Error as error:
            _logger.warning("freeing buffers of a lost context: %s", error)
        self._buffers.clear()

    def _set_scalar(self, argument: Argument, value: float | None) -> None:
        if value is None:
            raise launch_error(f"argument {argument.name!r}: the launch config has no value")
        try:
            packed = pack_scalar(argument, value)
        except ValueError as error:
            raise launch_error(str(error)) from error
        with cl_errors(Stage.LAUNCH):
            set_scalar(self.cl_kernel, argument.position, packed)

    def _place(self, argument: Argument, given: LaunchArgument) -> PlacedBuffer:
        elements = given.elements or 0
        num_bytes = elements * argument.element_bytes
        needed = _padded(num_bytes)
        if argument.kind is ArgumentKind.CONSTANT_BUFFER:
            needed = max(min(needed, self._max_constant_bytes), num_bytes, 4)
        held = self._buffers.get(argument.position)
        if held is None or held.size < needed:
            if held is not None:
                del self._buffers[argument.position]
                held.release()
            held = self.queue.allocate(needed)
            self._buffers[argument.position] = held
        with cl_errors(Stage.LAUNCH):
            self.cl_kernel.set_arg(argument.position, held)
        return PlacedBuffer(
            argument=argument,
            buffer=held,
            elements=elements,
            num_bytes=num_bytes,
            guard_bytes=max(0, min(GUARD_BYTES, held.size - num_bytes)),
            contents=given.contents,
        )

    def _check_ndrange(self, config: LaunchConfig) -> None:
        total, group = config.global_size, config.local_size
        device = self.queue.device
        shape = f"global size {total}, local size {group}"
        if not 1 <= len(total) <= 3 or len(total) != len(group):
            raise launch_error(f"{shape}: one to three dimensions, as many in both, are needed")
        if min(*total, *group) < 1 or any(n % m for n, m in zip(total, group, strict=True)):
            raise launch_error(f"{shape}: the global size must be a multiple of the local size")
        if math.prod(group) > self._max_local_items:
            raise launch_error(
                f"{shape}: {math.prod(group)} work-items a work-group; on this device "
                f"{self._name} takes at most {self._max_local_items} (CL_KERNEL_WORK_GROUP_SIZE)"
            )
        for count, limit in zip(group, device.max_work_item_sizes, strict=False):
            if count > limit:
                raise launch_error(f"{shape}: {count} work-items in one dimension, limit {limit}")
        required = self.signature.required_local_size
        if required is not None and tuple(required[: len(group)]) != group:
            raise launch_error(f"{shape}: {self._name} requires the local size {required}")

    def _check_memory(self, config: LaunchConfig) -> None:
        device = self.queue.device
        local_bytes, global_bytes = self._static_local_bytes, 0
        for argument, given in zip(self.signature.arguments, config.args, strict=True):
            num_bytes = (given.elements or 0) * argument.element_bytes
            if argument.kind is ArgumentKind.LOCAL_BUFFER:
                local_bytes += num_bytes
            elif argument.kind.is_buffer:
                global_bytes += _padded(num_bytes)
                limit = device.max_allocation_bytes
                if argument.kind is ArgumentKind.CONSTANT_BUFFER:
                    limit = self._max_constant_bytes
                    num_bytes = max(num_bytes, 4)
                else:
                    num_bytes = _padded(num_bytes)
                if num_bytes > limit:
                    raise out_of_memory(
                        f"argument {argument.name!r}: {num_bytes} bytes, at most {limit} possible"
                    )
        if local_bytes > device.local_memory_bytes:
            raise out_of_memory(
                f"{local_bytes} bytes of local memory, the device has {device.local_memory_bytes}"
            )
        if global_bytes > device.global_memory_bytes:
            raise out_of_memory(
                f"{global_bytes} bytes of buffers, the device has {device.global_memory_bytes}"
            )


class OpenclLauncher:
    """One launch config in place on the device, valid until the next ``prepare`` of its kernel."""

    def __init__(
        self, *, owner: OpenclLoadedKernel, config: LaunchConfig, buffers: Sequence[PlacedBuffer]
    ) -> None:
        self._owner = owner
        self._queue = owner.queue
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
        """Whether the kernel reads a buffer that it also writes."""
        return self._needs_refill

    def refill(self, *, seed: int, everything: bool = False) -> None:
        """Restore the written buffers (all with ``everything``) to the inputs of ``seed``; untimed.

        The zeros behind a buffer are restored, too (those behind structures only with the first inputs of a
        config): one that shrank would still hold a larger config's inputs.
        """
        self._require_current()
        with cl_errors(Stage.LAUNCH):
            self._enqueue_refill(seed, everything=everything)

    def _enqueue_refill(self, seed: int, *, everything: bool = False) -> cl.Event | None:
        """Enqueue the fills; return the last one's event, None where there is nothing to fill."""
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
        """Launch ``count`` times back to back and return the mean device time of one launch, ns.

        From the first start to the last end, so the gaps between queued launches are in it.
        """
        self._require_current()
        config, queue, kernel = self._config, self._queue.queue, self._owner.cl_kernel
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
        """Return how many launches of about this time may be enqueued at once; 1 on CPU devices, which lag behind."""
        if not self._queue.is_gpu or estimate_ns > _AT_ONCE_BELOW_NS:
            return 1
        if self.needs_refill:
            refilled_bytes = sum(item.num_bytes for item in self._written)
            return AT_ONCE if refilled_bytes <= _AT_ONCE_REFILL_BYTES else 1
        return AT_ONCE

    def launch_each(self, count: int, *, refill_seed: int) -> list[float]:
        """Launch ``count`` times without waiting in between; return the times of those that found the device idle, ns."""
        self._require_current()
        config, queue, kernel = self._config, self._queue.queue, self._owner.cl_kernel
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
        """Write twice the last-level cache so that the next launch starts cold."""
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

    def _require_current(self) -> None:
        if self._owner.current is not self:
            raise RuntimeError(
                "a launcher was used after its kernel was prepared for another config"
            )


def _stamp_ns(event: cl.Event, which: cl.profiling_info) -> int:
    stamp = event.get_profiling_info(which)
    assert isinstance(stamp, int), "an event's stamps are whole nanoseconds"
    return stamp


def _padded(num_bytes: int) -> int:
    """Return ``num_bytes`` with its guard, in whole guards, so that close sizes share a buffer."""
    return (num_bytes + GUARD_BYTES - 1) // GUARD_BYTES * GUARD_BYTES + GUARD_BYTES


def _require_supported(argument: Argument) -> None:
    usable = argument.kind.is_buffer or argument.kind is ArgumentKind.SCALAR
    if argument.kind is ArgumentKind.LOCAL_BUFFER:
        return
    types = [leaf.scalar_type for leaf in argument.leaves] or [argument.scalar_type]
    if not usable or not all(map(is_fillable, types)):
        detail = f"argument {argument.name!r} ({argument.kind}, {argument.type_name})"
        raise DeviceFailure(
            Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail=detail)
        )
