"""Which launch configs of a kernel are timed: a pure function of kernel, device class and config.

Owns the input strategies (what sizes and values arguments get) and what fits on the device. NDRanges are
drawn by ``launch_sizes.py``. Never plans what cannot be allocated, and never looks at a time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from llmperf_common.ids import content_id, sample_id
from llmperf_common.records import (
    Argument,
    ArgumentKind,
    DeviceClass,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Signature,
    Strategy,
    launch_argument_json,
)
from llmperf_common.regimes import regime_of
from workers.config import PlanConfig
from workers.launch_sizes import Shape, SizeRequest, draw_sizes, local_shapes

_GLOBAL_KINDS = frozenset({ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER})
_FLOATS = frozenset({"half", "float", "double"})
_LARGEST_VALUE = {
    "char": 2**7 - 1, "uchar": 2**8 - 1, "short": 2**15 - 1, "ushort": 2**16 - 1, "int": 2**31 - 1,
    "uint": 2**32 - 1, "long": 2**63 - 1, "ulong": 2**64 - 1,
}  # fmt: skip
_SEED_BITS = 48


class NotInThisRelease(ValueError):  # noqa: N818  (it names a promise, not a mistake)
    """A strategy that is documented but not built yet."""


def plan_configs(
    kernel: Kernel, device_class: DeviceClass, config: PlanConfig
) -> tuple[LaunchConfig, ...]:
    """Return the launch configs of one kernel on one device class, in the order to run them.

    Distinct by ``sample_id``; a config that several strategies ask for is planned once and carries all
    their labels. Fewer than ``samples_per_kernel`` where the space of NDRanges is that small; none for a
    kernel without a signature, or of which not even one work-group fits on the device.

    Args:
        kernel: with its signature.
        device_class: its compute units and limits.
        config: shares, caps and seed.

    Raises:
        NotInThisRelease: A strategy that this release does not have.
    """
    planned: dict[str, LaunchConfig] = {}
    for strategy in config.strategies:
        check_strategy(strategy)
        for global_size, local_size in _sizes(kernel, device_class, config, strategy):
            one = _simple_config(kernel, device_class, config, global_size, local_size)
            known = planned.get(one.sample_id)
            if known is None:
                planned[one.sample_id] = one
            elif strategy not in known.strategies:
                planned[one.sample_id] = replace(known, strategies=(*known.strategies, strategy))
    return tuple(planned.values())


def num_configs(kernel: Kernel, device_class: DeviceClass, config: PlanConfig) -> int:
    """Return ``len(plan_configs(...))`` without making the configs.

    Raises:
        NotInThisRelease: A strategy that this release does not have.
    """
    pairs: set[tuple[Shape, Shape]] = set()
    for strategy in config.strategies:
        check_strategy(strategy)
        pairs.update(_sizes(kernel, device_class, config, strategy))
    return len(pairs)


def launch_bytes(signature: Signature, config: LaunchConfig) -> int:
    """Return the bytes of all global and constant buffers of a launch config."""
    return sum(
        (launch.elements or 0) * argument.element_bytes
        for argument, launch in zip(signature.arguments, config.args, strict=True)
        if argument.kind in _GLOBAL_KINDS
    )


def simple_arguments(
    signature: Signature, global_size: Shape, local_size: Shape
) -> tuple[LaunchArgument, ...]:
    """Return the simple strategy's arguments: everything as large as the NDRange.

    Buffers have g**dims elements, g the longest side of the global size; integer scalars are global size
    0 (or the largest value their type holds), floating-point scalars 1, ``__local`` pointers have one
    element a work-item.
    """
    elements = max(global_size) ** len(global_size)
    return tuple(
        _simple_argument(argument, elements, global_size[0], math.prod(local_size))
        for argument in signature.arguments
    )


def _simple_argument(
    argument: Argument, elements: int, number: int, local_elements: int
) -> LaunchArgument:
    position, kind = argument.position, argument.kind
    if kind in _GLOBAL_KINDS:
        return LaunchArgument(position=position, kind=kind, elements=elements)
    if kind is ArgumentKind.LOCAL_BUFFER:
        return LaunchArgument(position=position, kind=kind, elements=local_elements)
    if argument.scalar_type in _FLOATS:
        return LaunchArgument(position=position, kind=kind, value=1.0)
    largest = _LARGEST_VALUE.get(argument.scalar_type, number)
    return LaunchArgument(position=position, kind=kind, value=min(number, largest))


def check_strategy(strategy: Strategy) -> None:
    """Raise NotInThisRelease for a strategy that this release does not have."""
    if strategy is not Strategy.SIMPLE:
        raise NotInThisRelease(
            f"plan.strategies: {strategy.value!r} is not in this release; use {Strategy.SIMPLE.value!r}"
        )


def _simple_config(
    kernel: Kernel,
    device_class: DeviceClass,
    config: PlanConfig,
    global_size: Shape,
    local_size: Shape,
) -> LaunchConfig:
    assert kernel.signature is not None
    arguments = simple_arguments(kernel.signature, global_size, local_size)
    identifier = sample_id(
        kernel_id=kernel.kernel_id,
        global_size=global_size,
        local_size=local_size,
        args=[launch_argument_json(one) for one in arguments],
        device_class=device_class.name,
    )
    groups = math.prod(n // side for n, side in zip(global_size, local_size, strict=True))
    return LaunchConfig(
        sample_id=identifier,
        global_size=global_size,
        local_size=local_size,
        args=arguments,
        regime=regime_of(groups, device_class.compute_units),
        strategies=(Strategy.SIMPLE,),
        seed=int(content_id("inputs", [config.seed, identifier]), 16) % 2**_SEED_BITS,
    )


def _sizes(
    kernel: Kernel, device_class: DeviceClass, config: PlanConfig, strategy: Strategy
) -> tuple[tuple[Shape, Shape], ...]:
    signature = kernel.signature
    if signature is None:
        return ()
    return draw_sizes(
        SizeRequest(
            key=content_id(
                "launch_plan", [kernel.kernel_id, device_class.name, strategy.value, config.seed]
            ),
            dims=signature.dims,
            sibling_share=config.sibling_share,
            shapes=_allowed_shapes(signature, device_class, few=config.local_sizes == "few"),
            compute_units=device_class.compute_units,
            num_wanted=config.samples_per_kernel,
            max_side=_max_side(signature, device_class, config),
            max_work_items=config.max_work_items,
            max_groups_per_unit=config.max_groups_per_unit,
            idle_share=config.idle_share,
            under_share=config.under_share,
            stratified=config.sampler == "stratified",
        )
    )


def _allowed_shapes(
    signature: Signature, device_class: DeviceClass, *, few: bool
) -> tuple[Shape, ...]:
    """Return the local sizes within the device's limits, its local memory included."""
    dims = signature.dims
    limits = (*device_class.max_work_item_sizes, *(1,) * dims)[:dims]
    required = signature.required_local_size
    if required is not None:
        shape = (*required, *(1,) * dims)[:dims]
        fits = math.prod(required) <= device_class.max_work_group_size and all(
            side <= most for side, most in zip(shape, limits, strict=True)
        )
        shapes: tuple[Shape, ...] = (shape,) if fits else ()
    else:
        shapes = local_shapes(dims, device_class.max_planned_work_group_size, limits, few=few)
    item_bytes = sum(
        one.element_bytes for one in signature.arguments if one.kind is ArgumentKind.LOCAL_BUFFER
    )
    left_bytes = device_class.local_memory_bytes - signature.static_local_bytes
    if left_bytes < 0:
        return ()
    fitting = tuple(shape for shape in shapes if math.prod(shape) * item_bytes <= left_bytes)
    if fitting or required is not None or not shapes:
        return fitting
    # Even the smallest of the usual shapes is too large: as many work-items as have room.
    items = min(left_bytes // item_bytes, limits[0], device_class.max_planned_work_group_size)
    return ((items, *(1,) * (dims - 1)),) if items >= 1 else ()


def _max_side(signature: Signature, device_class: DeviceClass, config: PlanConfig) -> int:
    """Return the longest side of a global size whose buffers of side**dims elements all fit."""
    sizes = [one.element_bytes for one in signature.arguments if one.kind in _GLOBAL_KINDS]
    if not sizes:
        return config.max_work_items
    total_bytes = min(config.max_launch_bytes, device_class.global_memory_bytes)
    elements = min(total_bytes // sum(sizes), device_class.max_allocation_bytes // max(sizes))
    return _integer_root(elements, signature.dims)


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
