"""Decide what fits on a device: local sizes, buffers and local memory.

Owns the limits that a plan respects, so that no config is planned that cannot be allocated. If a
driver still refuses a launch, the row fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmperf_common.launch import local_memory_bytes
from llmperf_common.records import (
    ArgumentKind,
    DeviceClass,
    LaunchArgument,
    LaunchConfig,
    Signature,
)
from workers.plan.ndranges import Shape, local_shapes, small_shapes

if TYPE_CHECKING:  # an analysis child imports this module, and needs no pydantic
    from workers.config import PlanConfig

GLOBAL_KINDS = frozenset({ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER})
_GUARD_BYTES = 2 * 4096
"""Bytes that a buffer may need in addition: it is allocated in pages, with a zeroed page behind."""


def launch_bytes(signature: Signature, config: LaunchConfig) -> int:
    """Return the bytes of all global and constant buffers of a launch config."""
    return sum(buffer_bytes(signature, config.args))


def buffer_bytes(signature: Signature, args: Sequence[LaunchArgument]) -> list[int]:
    """Return the bytes of each global and constant buffer."""
    return [
        (launch.elements or 0) * argument.element_bytes
        for argument, launch in zip(signature.arguments, args, strict=True)
        if argument.kind in GLOBAL_KINDS
    ]


def fits(
    signature: Signature,
    args: Sequence[LaunchArgument],
    device_class: DeviceClass,
    config: PlanConfig,
) -> bool:
    """Return whether the buffers and the local memory of a launch can be allocated."""
    sizes = buffer_bytes(signature, args)
    guarded = sum(sizes) + _GUARD_BYTES * len(sizes)
    return (
        _constant_bytes(signature, args) <= _constant_limit(device_class)
        and sum(sizes) <= config.max_launch_bytes
        and guarded <= device_class.global_memory_bytes
        and max(sizes, default=0) + _GUARD_BYTES <= device_class.max_allocation_bytes
        and local_memory_bytes(signature, args) <= device_class.local_memory_bytes
    )


def _constant_bytes(signature: Signature, args: Sequence[LaunchArgument]) -> int:
    """Return the bytes of the largest ``__constant`` buffer; 0 if there is none."""
    return max(
        (
            (launch.elements or 0) * argument.element_bytes
            for argument, launch in zip(signature.arguments, args, strict=True)
            if argument.kind is ArgumentKind.CONSTANT_BUFFER
        ),
        default=0,
    )


def _constant_limit(device_class: DeviceClass) -> int:
    """Return the maximum bytes of a ``__constant`` buffer, without guard page (NVIDIA: 64 KiB)."""
    limit_bytes = device_class.max_constant_buffer_bytes
    return device_class.max_allocation_bytes if limit_bytes is None else limit_bytes


def shapes_within(
    signature: Signature,
    device_class: DeviceClass,
    *,
    few: bool,
    allows: Callable[[Shape], bool],
) -> tuple[Shape, ...]:
    """Return the local sizes that kernel and device allow, without regard to local memory.

    ``allows``: tells whether the kernel's own arrays are large enough for a local size. If they are
    too small for all usual sizes, the result has smaller sizes: those allowed sizes that have at
    least half as many work-items as the largest allowed size.
    """
    dims = signature.dims
    limits = _side_limits(signature, device_class)
    required = signature.required_local_size
    if required is None:
        usual = local_shapes(dims, device_class.max_planned_work_group_size, limits, few=few)
        allowed = tuple(shape for shape in usual if allows(shape))
        if allowed:
            return allowed
        allowed = tuple(shape for shape in small_shapes(dims) if allows(shape))
        most = max(map(math.prod, allowed), default=0)
        return tuple(shape for shape in allowed if 2 * math.prod(shape) >= most) or usual
    shape = (*required, *(1,) * dims)[:dims]
    is_possible = math.prod(required) <= device_class.max_work_group_size and all(
        side <= most for side, most in zip(shape, limits, strict=True)
    )
    return (shape,) if is_possible else ()


def shapes_within_local_memory(
    signature: Signature,
    device_class: DeviceClass,
    needed_bytes: Callable[[Shape], int],
    *,
    few: bool,
    allows: Callable[[Shape], bool],
) -> tuple[Shape, ...]:
    """Return the local sizes whose local memory fits.

    ``needed_bytes``: returns the local memory of a launch, the declared arrays included.
    ``allows``: as in ``shapes_within``. If even the smallest of the usual shapes needs too much
    local memory, the result is the longest shape along dimension 0 that fits.
    """
    shapes = shapes_within(signature, device_class, few=few, allows=allows)
    limit_bytes = device_class.local_memory_bytes
    fitting = tuple(shape for shape in shapes if needed_bytes(shape) <= limit_bytes)
    if fitting or signature.required_local_size is not None or not shapes:
        return fitting
    rest = (1,) * (signature.dims - 1)
    most = min(_side_limits(signature, device_class)[0], device_class.max_planned_work_group_size)
    if needed_bytes((1, *rest)) > limit_bytes:
        return ()
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if needed_bytes((middle, *rest)) <= limit_bytes else (low, middle)
        )
    return ((low, *rest),)


def max_simple_side(signature: Signature, device_class: DeviceClass, config: PlanConfig) -> int:
    """Return the longest side of a global size for which all buffers of side**dims elements fit."""
    sizes = [one.element_bytes for one in signature.arguments if one.kind in GLOBAL_KINDS]
    if not sizes:
        return config.max_work_items
    total_bytes = min(config.max_launch_bytes, device_class.global_memory_bytes)
    elements = min(total_bytes // sum(sizes), device_class.max_allocation_bytes // max(sizes))
    constants = [
        one.element_bytes for one in signature.arguments if one.kind is ArgumentKind.CONSTANT_BUFFER
    ]
    if constants:
        elements = min(elements, _constant_limit(device_class) // max(constants))
    return _integer_root(elements, signature.dims)


def _side_limits(signature: Signature, device_class: DeviceClass) -> Shape:
    dims = signature.dims
    return (*device_class.max_work_item_sizes, *(1,) * dims)[:dims]


def _integer_root(number: int, degree: int) -> int:
    """Return the largest integer whose ``degree``-th power is at most ``number``.

    >>> [_integer_root(n, 3) for n in (0, 26, 27, 10**18)]
    [0, 2, 3, 1000000]
    """
    root: int = round(float(number) ** (1 / degree))
    while root**degree > number:
        root -= 1
    while (root + 1) ** degree <= number:
        root += 1
    return root
