"""Which launch configs of a kernel are timed: a pure function of kernel, device class and config.

Decides how strategies share the configs of a kernel, and each config's id, regime and seed. The
arguments come from the strategies (``strategies/rules.py``), the NDRanges from ``ndranges.py``.
Never plans a config that cannot be allocated, and never looks at a measured time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmperf_common.analysis import Analysis
from llmperf_common.features.regimes import regime_of
from llmperf_common.ids import content_id, sample_id
from llmperf_common.launch import local_memory_bytes
from llmperf_common.records import (
    DeviceClass,
    Kernel,
    LaunchConfig,
    Signature,
    Strategy,
    launch_argument_json,
)
from workers.plan.ndranges import Shape, SizeRequest, draw_sizes
from workers.plan.strategies.memory_limits import (
    fits,
    max_simple_side,
    shapes_within_local_memory,
)
from workers.plan.strategies.rules import InputRule, rules_for

if TYPE_CHECKING:  # an analysis child imports this module, and needs no pydantic
    from workers.config import PlanConfig

_SEED_BITS = 48


def plan_configs(
    kernel: Kernel,
    device_class: DeviceClass,
    config: PlanConfig,
    analysis: Analysis | None = None,
) -> tuple[LaunchConfig, ...]:
    """Return the launch configs of one kernel on one device class, in the order to run them.

    There are ``samples_per_kernel`` configs, distinct by ``sample_id``. If there are several
    strategies, they take turns. A config that several strategies ask for is planned once and
    carries all their labels.
    There are fewer configs if the kernel has fewer NDRanges, and none for a kernel without a
    signature or if not even one work-group fits on the device.

    Args:
        kernel: the kernel with its signature.
        device_class: compute units and limits of the device.
        config: strategies, shares, caps and seed.
        analysis: the kernel's memory analysis. If there is no analysis with forms, the simple
            strategy plans in place of the other strategies, under its own label.
    """
    signature = kernel.signature
    if signature is None:
        return ()
    rules = rules_for(kernel, signature, device_class, config, analysis)
    wanted = config.samples_per_kernel
    planned: dict[str, LaunchConfig] = {}
    shares = [wanted // len(rules) + (n < wanted % len(rules)) for n in range(len(rules))]
    # A strategy may give fewer configs than its share, because it has few NDRanges or another
    # strategy gave the same configs first. In a second round every strategy may fill the gap.
    for amounts in (shares, [wanted] * len(rules)):
        if len(planned) >= wanted:
            break
        streams = [
            _configs(kernel, signature, device_class, config, rule, amount)
            for rule, amount in zip(rules, amounts, strict=True)
            if amount
        ]
        _take_turns(streams, planned, wanted)
    return tuple(planned.values())


def num_configs(
    kernel: Kernel,
    device_class: DeviceClass,
    config: PlanConfig,
    analysis: Analysis | None = None,
) -> int:
    """Return ``len(plan_configs(...))``, without making the configs if there is one strategy."""
    signature = kernel.signature
    if signature is None:
        return 0
    rules = rules_for(kernel, signature, device_class, config, analysis)
    if len(rules) > 1:
        return len(plan_configs(kernel, device_class, config, analysis))
    return len(_sizes(kernel, signature, device_class, config, rules[0], config.samples_per_kernel))


def input_seed(plan_seed: int, kernel_id: str, global_size: Sequence[int]) -> int:
    """Return the seed of a config's inputs, the same for every local size and device."""
    return seed_of([plan_seed, kernel_id, list(global_size)])


def seed_of(value: object) -> int:
    """Return the seed of inputs for a JSON value, in [0, 2**48)."""
    return int(content_id("inputs", value), 16) % (1 << _SEED_BITS)


def _take_turns(
    streams: list[Iterator[LaunchConfig]], planned: dict[str, LaunchConfig], wanted: int
) -> None:
    """Move configs from the streams into ``planned``, one new config per turn, up to ``wanted``."""
    while streams and len(planned) < wanted:
        for stream in list(streams):
            if len(planned) >= wanted:
                return
            for one in stream:
                known = planned.get(one.sample_id)
                if known is None:
                    planned[one.sample_id] = one
                    break
                labels = dict.fromkeys((*known.strategies, *one.strategies))
                planned[one.sample_id] = replace(known, strategies=tuple(labels))
            else:
                streams.remove(stream)


def _configs(
    kernel: Kernel,
    signature: Signature,
    device_class: DeviceClass,
    config: PlanConfig,
    rule: InputRule,
    num_wanted: int,
) -> Iterator[LaunchConfig]:
    for global_size, local_size in _sizes(
        kernel, signature, device_class, config, rule, num_wanted
    ):
        arguments = rule.arguments(global_size, local_size)
        identifier = sample_id(
            kernel_id=kernel.kernel_id,
            global_size=global_size,
            local_size=local_size,
            args=[launch_argument_json(one) for one in arguments],
            device_class=device_class.name,
        )
        groups = math.prod(n // side for n, side in zip(global_size, local_size, strict=True))
        yield LaunchConfig(
            sample_id=identifier,
            global_size=global_size,
            local_size=local_size,
            args=arguments,
            regime=regime_of(groups, device_class.compute_units),
            strategies=(rule.strategy,),
            seed=input_seed(config.seed, kernel.kernel_id, global_size),
        )


def _sizes(
    kernel: Kernel,
    signature: Signature,
    device_class: DeviceClass,
    config: PlanConfig,
    rule: InputRule,
    num_wanted: int,
) -> tuple[tuple[Shape, Shape], ...]:
    def needed_bytes(shape: Shape) -> int:
        return local_memory_bytes(signature, rule.arguments(shape, shape))

    def fits_memory(global_size: Shape, local_size: Shape) -> bool:
        return fits(signature, rule.arguments(global_size, local_size), device_class, config)

    few = config.local_sizes == "few"
    is_simple = rule.strategy is Strategy.SIMPLE
    key = [kernel.kernel_id, device_class.name, rule.strategy.value, config.seed]
    return draw_sizes(
        SizeRequest(
            key=content_id("launch_plan", key),
            dims=signature.dims,
            sibling_share=config.sibling_share,
            shapes=shapes_within_local_memory(
                signature,
                device_class,
                needed_bytes,
                few=few,
                allows=rule.allows,
            ),
            compute_units=device_class.compute_units,
            num_wanted=num_wanted,
            max_side=max_simple_side(signature, device_class, config)
            if is_simple
            else config.max_work_items,
            max_work_items=config.max_work_items,
            max_groups_per_unit=config.max_groups_per_unit,
            idle_share=config.idle_share,
            under_share=config.under_share,
            stratified=config.sampler == "stratified",
            fits=None if is_simple else fits_memory,
        )
    )
