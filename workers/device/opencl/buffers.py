"""The buffers of one kernel on an OpenCL device.

Owns the buffers of a task (``OpenclLoadedKernel``). The buffers are filled for at most one launch
config at a time: after the next config is prepared, the launcher of the earlier one cannot be used.
``opencl/limits.py`` checks configs, ``opencl/launcher.py`` launches them, and
``workers/plan/inputs.py`` has the rule for contents.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, Kernel, LaunchArgument, LaunchConfig
from workers.device.interface import FRONT_PADDING_BYTES, PADDING_BYTES, DeviceFailure
from workers.device.opencl.errors import cl_errors, launch_error
from workers.device.opencl.launcher import OpenclLauncher, PlacedBuffer
from workers.device.opencl.limits import GUARD_BYTES, LaunchLimits, padded
from workers.device.opencl.queue import DeviceQueue, set_scalar
from workers.plan.inputs import pack_scalar

_logger = logging.getLogger(__name__)

_BOTH_PADDINGS_BYTES = FRONT_PADDING_BYTES + PADDING_BYTES

_RESERVED_SHARE = 0.5
"""Largest share of the device's memory that ``reserve`` allocates."""
_AHEAD_SHARE = 1 / 16
"""Largest share that ``reserve`` allocates while another process holds the device. At the same
time, one process may allocate ``_RESERVED_SHARE``, three others may allocate this share each, and
each process keeps 1/32 of the memory for its next task (``_KEPT_SHARE`` in ``queue.py``)."""


class OpenclLoadedKernel:
    """A kernel with the buffers of its task; they grow to the largest config and are reused."""

    def __init__(self, *, queue: DeviceQueue, kernel: Kernel, cl_kernel: cl.Kernel) -> None:
        if kernel.signature is None:
            raise ValueError(f"kernel {kernel.name} has no signature, so it cannot be launched")
        self.signature = kernel.signature
        self.queue = queue
        self.cl_kernel = cl_kernel
        self._current: OpenclLauncher | None = None
        self._buffers: dict[int, cl.Buffer] = {}
        """The buffers by position; a padded buffer is a part of an allocation in ``_wholes``."""
        self._wholes: dict[int, cl.Buffer] = {}
        self._ends_of_contents: dict[int, int] = {}
        """By position, the offset in bytes after which a buffer has only zeros; missing for a new
        buffer."""
        self._paddings_to_clear: list[tuple[cl.Buffer, int]] = []
        """Allocations with padding, and the number of bytes between their two paddings."""
        self._is_reserved = False
        self._limits = LaunchLimits(
            name=kernel.name,
            signature=kernel.signature,
            cl_kernel=cl_kernel,
            cl_device=queue.cl_device,
            device=queue.device,
        )

    def reserve(
        self,
        configs: Sequence[LaunchConfig],
        *,
        with_padding: bool,
        ahead: bool = False,
    ) -> None:
        """Allocate each buffer in the size that the largest config needs, if all buffers fit.

        Launches nothing. Buffers that grew from config to config would be freed and allocated a
        dozen times, each time at the cost of a launch or more. ``prepare`` refuses configs that are
        too large.

        Args:
            configs: the configs to come.
            with_padding: on a GPU, put ``FRONT_PADDING_BYTES`` before and ``PADDING_BYTES`` behind
                each buffer; ``prepare`` fills them with zeros.
            ahead: whether another process holds the device. If so, and if more than
                ``_AHEAD_SHARE`` of the memory is needed, allocate nothing yet.

        Raises:
            DeviceFailure: The context is lost.
        """
        if self._is_reserved:
            return
        device = self.queue.device
        largest = self._largest_bytes(configs)
        available = device.global_memory_bytes * (_AHEAD_SHARE if ahead else _RESERVED_SHARE)
        needed = sum(largest.values())
        with_padding = with_padding and self.queue.is_gpu
        if with_padding:
            needed_padded = needed + len(largest) * _BOTH_PADDINGS_BYTES
            if needed_padded <= available or ahead:
                needed = needed_padded
            else:
                with_padding = False
        if needed > available:
            return
        try:
            for position, num_bytes in largest.items():
                if position not in self._buffers:
                    if (
                        with_padding
                        and num_bytes + _BOTH_PADDINGS_BYTES <= device.max_allocation_bytes
                    ):
                        self._take_padded(position, num_bytes)
                    else:
                        self._buffers[position] = self.queue.kept.take(num_bytes)
            self.queue.make_resident(
                [self._wholes.get(position, held) for position, held in self._buffers.items()]
            )
            self._is_reserved = True
        except DeviceFailure as error:
            if error.sticky:
                raise
            self.release(keep=False)  # the memory is in use elsewhere; smaller configs may fit

    def _largest_bytes(self, configs: Sequence[LaunchConfig]) -> dict[int, int]:
        """Return, by position, the maximum bytes that these configs need of each global buffer."""
        largest: dict[int, int] = {}
        for config in configs:
            for argument, given in zip(self.signature.arguments, config.args, strict=True):
                if argument.kind is ArgumentKind.GLOBAL_BUFFER:
                    num_bytes = padded((given.elements or 0) * argument.element_bytes)
                    if num_bytes <= self.queue.device.max_allocation_bytes:
                        known = largest.get(argument.position, 0)
                        largest[argument.position] = max(known, num_bytes)
        return largest

    def _take_padded(self, position: int, num_bytes: int) -> None:
        """Allocate a buffer with padding on both sides: a sub-buffer of one larger allocation."""
        whole = self.queue.kept.take(num_bytes + _BOTH_PADDINGS_BYTES)
        self._wholes[position] = whole
        with cl_errors(Stage.LAUNCH):
            part = whole.get_sub_region(FRONT_PADDING_BYTES, num_bytes + PADDING_BYTES)
        self._buffers[position] = part
        self._paddings_to_clear.append((whole, num_bytes))

    def _clear_paddings(self) -> None:
        with cl_errors(Stage.LAUNCH):
            for whole, num_bytes in self._paddings_to_clear:
                end = FRONT_PADDING_BYTES + num_bytes
                self.queue.fill_bytes(whole, 0, num_bytes=FRONT_PADDING_BYTES)
                self.queue.fill_bytes(whole, 0, start=end, num_bytes=PADDING_BYTES)
        self._paddings_to_clear.clear()

    def prepare(self, config: LaunchConfig) -> OpenclLauncher:
        """Set the arguments of ``config``, and fill every buffer with the inputs of its seed.

        Launchers of earlier configs become invalid, because all share the kernel and its buffers.

        Raises:
            DeviceFailure: ``launch_error`` (NDRange or argument) or ``out_of_memory``.
        """
        self._limits.check(config)
        try:
            return self._put_in_place(config)
        except DeviceFailure as error:
            can_give_back = self._is_reserved or self.queue.kept.num_bytes > 0
            if error.failure.code is not FailureCode.OUT_OF_MEMORY or not can_give_back:
                raise
            # Some drivers allocate at first use. Then reserved or kept buffers can be too large.
            self.release(keep=False)
            return self._put_in_place(config)

    def _put_in_place(self, config: LaunchConfig) -> OpenclLauncher:
        self._retire_current()
        self._clear_paddings()
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
        """Return the first ``num_bytes`` of one argument's buffer, which may include its guard."""
        with cl_errors(Stage.CHECK, waiting=True):
            return self.queue.read(self._buffers[position], num_bytes)

    def release(self, *, keep: bool = True) -> None:
        """Release the kernel's buffers; wait until the driver has cleared freed memory.

        The clearing would disturb the next timed launch. A lost context has lost its buffers, too.

        Args:
            keep: keep buffers for the next kernel, within bounds, instead of freeing them.
        """
        self._retire_current()
        try:
            for position in list(self._buffers):
                self._give_back(position)
            if not keep:
                self.queue.kept.drop()
        except cl.Error as error:
            _logger.warning("freeing buffers of a lost context: %s", error)
        self.queue.freed.await_cleared()
        self._buffers.clear()
        self._wholes.clear()
        self._ends_of_contents.clear()
        self._paddings_to_clear.clear()
        self._is_reserved = False

    def _give_back(self, position: int) -> None:
        held, whole = self._buffers.pop(position), self._wholes.pop(position, None)
        self._ends_of_contents.pop(position, None)
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
        needed = padded(num_bytes)
        allocate = self.queue.kept.take
        if argument.kind is ArgumentKind.CONSTANT_BUFFER:  # ``check`` has refused large ones
            needed = max(min(needed, self._limits.max_constant_bytes), num_bytes, 4)
            allocate = self.queue.allocate
        held = self._buffers.get(argument.position)
        if held is None or held.size < needed:
            if held is not None:
                with cl_errors(Stage.LAUNCH):
                    self._give_back(argument.position)
            held = self._buffers[argument.position] = allocate(needed)
        guard_bytes = max(0, min(GUARD_BYTES, held.size - num_bytes))
        with cl_errors(Stage.LAUNCH):
            self._clear_behind(argument.position, num_bytes + guard_bytes)
            self.cl_kernel.set_arg(argument.position, held)
        return PlacedBuffer(
            argument=argument,
            buffer=held,
            elements=elements,
            num_bytes=num_bytes,
            guard_bytes=guard_bytes,
            contents=given.contents,
        )

    def _clear_behind(self, position: int, end_bytes: int) -> None:
        """Overwrite with zeros what a larger config or another kernel has left behind the guard.

        Otherwise a kernel that reads further than planned would depend on the previous config.
        """
        held = self._buffers[position]
        # ``_clear_paddings`` has cleared the padding.
        padding_bytes = PADDING_BYTES if position in self._wholes else 0
        dirty_bytes = self._ends_of_contents.get(position, held.size - padding_bytes)
        if dirty_bytes > end_bytes:
            self.queue.fill_bytes(held, 0, start=end_bytes, num_bytes=dirty_bytes - end_bytes)
        self._ends_of_contents[position] = end_bytes
