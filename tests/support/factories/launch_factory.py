"""Launch configs of a kernel that a test writes as text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from llmperf_common.analysis import Contents
from llmperf_common.records import (
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Strategy,
)
from tests.support.reading import kernels_from_source


def kernel_of(source: str) -> Kernel:
    """Return the only kernel of a source."""
    (kernel,) = kernels_from_source(source)
    return kernel


def launch_of(
    kernel: Kernel,
    global_size: tuple[int, ...],
    local_size: tuple[int, ...],
    *,
    scalars: int | Mapping[str, int] | None = None,
    elements: int | None = None,
    contents: Mapping[int, Contents] | None = None,
    seed: int = 7,
) -> LaunchConfig:
    """Return a launch config; scalars and buffer sizes are the number of work-items by default.

    ``scalars``: one value for all, or values by name. ``contents``: by the argument's position.
    """
    assert kernel.signature is not None
    items = math.prod(global_size)
    args = []
    for one in kernel.signature.arguments:
        is_scalar = one.kind is ArgumentKind.SCALAR
        value = scalars[one.name] if is_scalar and isinstance(scalars, Mapping) else scalars
        args.append(
            LaunchArgument(
                position=one.position,
                kind=one.kind,
                value=(items if value is None else value) if is_scalar else None,
                elements=None if is_scalar else elements or items,
                contents=(contents or {}).get(one.position),
            )
        )
    return LaunchConfig(
        sample_id=f"s{items}",
        global_size=global_size,
        local_size=local_size,
        args=tuple(args),
        regime=None,
        strategies=(Strategy.SIMPLE,),
        seed=seed,
    )


def configs_of(kernel: Kernel, *sizes: int) -> list[LaunchConfig]:
    """Return a launch with buffers and scalars of each size, in work-groups of 64."""
    return [launch_of(kernel, (size,), (64,), seed=size) for size in sizes]
