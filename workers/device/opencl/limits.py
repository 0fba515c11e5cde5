"""The limits of a kernel's launches on an OpenCL device, checked before arguments are set.

Owns the checks of a launch config, and the guard behind each buffer. ``opencl/buffers.py`` places
the buffers.
"""

from __future__ import annotations

import math

import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, Device, LaunchConfig, Signature
from workers.device.interface import DeviceFailure
from workers.device.opencl.errors import cl_errors, launch_error, out_of_memory
from workers.plan.inputs import is_fillable

GUARD_BYTES = 4096
"""Bytes of zeros behind every buffer, called its guard. A kernel that reads a little too far reads
these zeros."""


class LaunchLimits:
    """The limits of one kernel on one device.

    Args:
        name: the kernel's name, for messages.
        signature: the kernel's signature.
        cl_kernel: the kernel, loaded on the device.
        cl_device: the device on which it is launched.
        device: the record of this device.

    Raises:
        DeviceFailure: ``unsupported``, if an argument's kind or type cannot be passed.
    """

    def __init__(
        self,
        *,
        name: str,
        signature: Signature,
        cl_kernel: cl.Kernel,
        cl_device: cl.Device,
        device: Device,
    ) -> None:
        for argument in signature.arguments:
            _require_supported(argument)
        self._name = name
        self._signature = signature
        self._device = device
        info = cl.kernel_work_group_info
        with cl_errors(Stage.LAUNCH):
            work_group_info = cl_kernel.get_work_group_info
            self._max_local_items = int(work_group_info(info.WORK_GROUP_SIZE, cl_device))
            driver_local_bytes = int(work_group_info(info.LOCAL_MEM_SIZE, cl_device))
            self.max_constant_bytes = int(cl_device.max_constant_buffer_size)
        if signature.required_local_size is not None:
            # NVIDIA's OpenCL reports 256 for a kernel that requires 1,024, but launches it.
            required = math.prod(signature.required_local_size)
            self._max_local_items = max(self._max_local_items, required)
        self._static_local_bytes = max(driver_local_bytes, signature.static_local_bytes)

    def check(self, config: LaunchConfig) -> None:
        """Refuse a config that cannot be launched.

        Raises:
            DeviceFailure: ``launch_error`` (NDRange or argument) or ``out_of_memory``.
        """
        if len(config.args) != len(self._signature.arguments):
            raise launch_error(
                f"kernel {self._name} has {len(self._signature.arguments)} arguments, "
                f"but the launch config has {len(config.args)}"
            )
        self._check_ndrange(config)
        self._check_memory(config)

    def _check_ndrange(self, config: LaunchConfig) -> None:
        total, group = config.global_size, config.local_size
        device = self._device
        shape = f"global size {total}, local size {group}"
        if not 1 <= len(total) <= 3 or len(total) != len(group):
            raise launch_error(
                f"{shape}: both must have the same number of dimensions, one to three"
            )
        if min(*total, *group) < 1 or any(n % m for n, m in zip(total, group, strict=True)):
            raise launch_error(f"{shape}: the global size must be a multiple of the local size")
        if math.prod(group) > self._max_local_items:
            raise launch_error(
                f"{shape}: a work-group has {math.prod(group)} work-items, but kernel "
                f"{self._name} takes at most {self._max_local_items} on this device "
                "(CL_KERNEL_WORK_GROUP_SIZE)"
            )
        for count, limit in zip(group, device.max_work_item_sizes, strict=False):
            if count > limit:
                raise launch_error(
                    f"{shape}: a work-group has {count} work-items in one dimension, but the "
                    f"device allows at most {limit}"
                )
        required = self._signature.required_local_size
        if required is not None and tuple(required[: len(group)]) != group:
            raise launch_error(f"{shape}: kernel {self._name} requires the local size {required}")

    def _check_memory(self, config: LaunchConfig) -> None:
        device = self._device
        local_bytes, global_bytes = self._static_local_bytes, 0
        for argument, given in zip(self._signature.arguments, config.args, strict=True):
            num_bytes = (given.elements or 0) * argument.element_bytes
            if argument.kind is ArgumentKind.LOCAL_BUFFER:
                local_bytes += num_bytes
            elif argument.kind.is_buffer:
                global_bytes += padded(num_bytes)
                limit = device.max_allocation_bytes
                if argument.kind is ArgumentKind.CONSTANT_BUFFER:
                    limit = self.max_constant_bytes
                    num_bytes = max(num_bytes, 4)
                else:
                    num_bytes = padded(num_bytes)
                if num_bytes > limit:
                    raise out_of_memory(
                        f"argument {argument.name!r} needs a buffer of {num_bytes} bytes, but the "
                        f"device allows at most {limit}"
                    )
        if local_bytes > device.local_memory_bytes:
            raise out_of_memory(
                f"{local_bytes} bytes of local memory are needed, but the device has "
                f"{device.local_memory_bytes}"
            )
        if global_bytes > device.global_memory_bytes:
            raise out_of_memory(
                f"{global_bytes} bytes of buffers are needed, but the device has "
                f"{device.global_memory_bytes}"
            )


def padded(num_bytes: int) -> int:
    """Return ``num_bytes`` rounded up to whole guards, plus one guard.

    Because of the rounding, configs of similar size can use the same buffer.
    """
    return (num_bytes + GUARD_BYTES - 1) // GUARD_BYTES * GUARD_BYTES + GUARD_BYTES


def _require_supported(argument: Argument) -> None:
    usable = argument.kind.is_buffer or argument.kind is ArgumentKind.SCALAR
    if argument.kind is ArgumentKind.LOCAL_BUFFER:
        return
    types = [leaf.scalar_type for leaf in argument.leaves] or [argument.scalar_type]
    if not usable or not all(map(is_fillable, types)):
        detail = (
            f"argument {argument.name!r} ({argument.kind}, {argument.type_name}) cannot be passed"
        )
        raise DeviceFailure(
            Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail=detail)
        )
