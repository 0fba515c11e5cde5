"""The buffers of one kernel on an OpenCL device.

Owns the buffers of a task (``OpenclLoadedKernel``), what is checked before a launch config is put in place, and that at most
one config is. How it is launched: ``opencl_launch.py``. What a buffer contains is ``workers/inputs.py``'s rule.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, Kernel, LaunchArgument, LaunchConfig
from workers.device.interface import FRONT_ROOM_BYTES, ROOM_BYTES, DeviceFailure
from workers.device.opencl_errors import cl_errors, launch_error, out_of_memory
from workers.device.opencl_launch import OpenclLauncher, PlacedBuffer
from workers.device.opencl_queue import DeviceQueue, set_scalar
from workers.inputs import is_fillable, pack_scalar

_logger = logging.getLogger(__name__)

GUARD_BYTES = 4096
"""Zeroed room behind every buffer: a kernel that reaches a little too far reads zeros, not its neighbour."""

_BOTH_ROOMS_BYTES = FRONT_ROOM_BYTES + ROOM_BYTES

_RESERVED_SHARE = 0.5
"""Most of the device's memory that is allocated before it is needed."""
_AHEAD_SHARE = 1 / 16
"""The same while another process has the device. One has ``_RESERVED_SHARE``, three others this, and each keeps a thirty-second."""


class OpenclLoadedKernel:
    """A kernel with the buffers of its task, which grow to the largest config seen and are reused."""

    def __init__(self, *, queue: DeviceQueue, kernel: Kernel, cl_kernel: cl.Kernel) -> None:
        if kernel.signature is None:
            raise ValueError(f"kernel {kernel.name}: it has no signature, so it cannot be launched")
        self.signature = kernel.signature
        self.queue = queue
        self.cl_kernel = cl_kernel
        self._current: OpenclLauncher | None = None
        self._name = kernel.name
        self._buffers: dict[int, cl.Buffer] = {}
        """By position; a buffer with room around it is a part of ``_wholes``'s."""
        self._wholes: dict[int, cl.Buffer] = {}
        self._rooms_to_clear: list[tuple[cl.Buffer, int]] = []
        """Buffers with room, and how many bytes lie between their rooms."""
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

    def reserve(
        self,
        configs: Sequence[LaunchConfig],
        *,
        with_room: bool,
        ahead: bool = False,
    ) -> None:
        """Allocate each buffer as large as the largest of these configs needs it, where that fits all together.

        Growing from config to config would free and allocate a dozen times, at a launch's cost or more each. Configs
        that are too large for the device are left to ``prepare``, which refuses them. Nothing is launched.

        Args:
            configs: those to come.
            with_room: on a GPU there are also ``FRONT_ROOM_BYTES`` before and ``ROOM_BYTES`` behind each, zeros once a
                config is prepared.
            ahead: another process has the device: what needs more than ``_AHEAD_SHARE`` is left for a second call.

        Raises:
            DeviceFailure: The context is lost.
        """
        if self._is_reserved:
            return
        device = self.queue.device
        largest = self._largest_bytes(configs)
        available = device.global_memory_bytes * (_AHEAD_SHARE if ahead else _RESERVED_SHARE)
        needed = sum(largest.values())
        with_room = with_room and self.queue.is_gpu
        if with_room:
            needed_with_room = needed + len(largest) * _BOTH_ROOMS_BYTES
            if needed_with_room <= available or ahead:
                needed = needed_with_room
            else:
                with_room = False
        if needed > available:
            return
        try:
            for position, num_bytes in largest.items():
                if position not in self._buffers:
                    if with_room and num_bytes + _BOTH_ROOMS_BYTES <= device.max_allocation_bytes:
                        self._take_with_room(position, num_bytes)
                    else:
                        self._buffers[position] = self.queue.kept.take(num_bytes)
            self.queue.make_resident(
                [self._wholes.get(position, held) for position, held in self._buffers.items()]
            )
            self._is_reserved = True
        except DeviceFailure as error:
            if error.sticky:
                raise
            self.release(
                keep=False
            )  # somebody else has the memory: smaller configs may find enough

    def _largest_bytes(self, configs: Sequence[LaunchConfig]) -> dict[int, int]:
        """Return the most that these configs need of each global buffer, by position."""
        largest: dict[int, int] = {}
        for config in configs:
            for argument, given in zip(self.signature.arguments, config.args, strict=True):
                if argument.kind is ArgumentKind.GLOBAL_BUFFER:
                    num_bytes = _padded((given.elements or 0) * argument.element_bytes)
                    if num_bytes <= self.queue.device.max_allocation_bytes:
                        known = largest.get(argument.position, 0)
                        largest[argument.position] = max(known, num_bytes)
        return largest

    def _take_with_room(self, position: int, num_bytes: int) -> None:
        """Have a buffer with room on both sides: what lies before it belongs to the allocation that it is a part of."""
        whole = self.queue.kept.take(num_bytes + _BOTH_ROOMS_BYTES)
        self._wholes[position] = whole
        with cl_errors(Stage.LAUNCH):
            part = whole.get_sub_region(FRONT_ROOM_BYTES, num_bytes + ROOM_BYTES)
        self._buffers[position] = part
        self._rooms_to_clear.append((whole, num_bytes))

    def _clear_rooms(self) -> None:
        with cl_errors(Stage.LAUNCH):
            for whole, num_bytes in self._rooms_to_clear:
                end = FRONT_ROOM_BYTES + num_bytes
                self.queue.fill_bytes(whole, 0, num_bytes=FRONT_ROOM_BYTES)
                self.queue.fill_bytes(whole, 0, start=end, num_bytes=ROOM_BYTES)
        self._rooms_to_clear.clear()

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
            can_give_back = self._is_reserved or self.queue.kept.num_bytes > 0
            if error.failure.code is not FailureCode.OUT_OF_MEMORY or not can_give_back:
                raise
            # Drivers may find memory at a buffer's first use only, so what was reserved, or kept, can be too much after all.
            self.release(keep=False)
            return self._put_in_place(config)

    def _put_in_place(self, config: LaunchConfig) -> OpenclLauncher:
        self._retire_current()
        self._clear_rooms()
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
        launcher = OpenclLauncher(
            queue=self.queue, cl_kernel=self.cl_kernel, config=config, buffers=placed
        )
        self._current = launcher
        launcher.refill(seed=config.seed, everything=True)
        return launcher

    def read_buffer(self, position: int, num_bytes: int) -> bytes:
        """Return the first bytes, guard included, of one argument's buffer."""
        with cl_errors(Stage.CHECK, waiting=True):
            return self.queue.read(self._buffers[position], num_bytes)

    def release(self, *, keep: bool = True) -> None:
        """Give the kernel's buffers back; where the context is lost they are gone already.

        Args:
            keep: for the next kernel, within bounds.
        """
        self._retire_current()
        try:
            for position in list(self._buffers):
                self._give_back(position)
            if not keep:
                self.queue.kept.drop()
        except cl.Error as error:
            _logger.warning("freeing buffers of a lost context: %s", error)
        self._buffers.clear()
        self._wholes.clear()
        self._rooms_to_clear.clear()
        self._is_reserved = False

    def _give_back(self, position: int) -> None:
        held, whole = self._buffers.pop(position), self._wholes.pop(position, None)
        if self.signature.arguments[position].kind is ArgumentKind.CONSTANT_BUFFER:
            held.release()
        elif whole is None:
            self.queue.kept.give_back(held)
        else:
            held.release()
            self.queue.kept.give_back(whole)

    def _retire_current(self) -> None:
        if self._current is not None:
            self._current.retire()
            self._current = None

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
        allocate = self.queue.kept.take
        if argument.kind is ArgumentKind.CONSTANT_BUFFER:  # one that is too large is refused
            needed = max(min(needed, self._max_constant_bytes), num_bytes, 4)
            allocate = self.queue.allocate
        held = self._buffers.get(argument.position)
        if held is None or held.size < needed:
            if held is not None:
                with cl_errors(Stage.LAUNCH):
                    self._give_back(argument.position)
            held = self._buffers[argument.position] = allocate(needed)
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
