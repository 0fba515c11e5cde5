"""Launch configs of a kernel that a test writes as text."""

from __future__ import annotations

from llmperf_common.records import (
    Argument,
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


def configs_of(kernel: Kernel, *sizes: int) -> list[LaunchConfig]:
    """Return a launch with buffers and scalars of each size, in work-groups of 64."""
    assert kernel.signature is not None
    return [
        LaunchConfig(
            sample_id=f"s{size}",
            global_size=(size,),
            local_size=(64,),
            args=tuple(_given(argument, size) for argument in kernel.signature.arguments),
            regime=None,
            strategies=(Strategy.SIMPLE,),
            seed=size,
        )
        for size in sizes
    ]


def _given(argument: Argument, size: int) -> LaunchArgument:
    is_scalar = argument.kind is ArgumentKind.SCALAR
    return LaunchArgument(
        position=argument.position,
        kind=argument.kind,
        value=size if is_scalar else None,
        elements=None if is_scalar else size,
    )
