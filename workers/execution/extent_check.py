"""Judge launch configs by the kernel's validated extents: which need padding or must not run.

If every extent is validated, the accesses of a launch follow from its sizes, so buffers that are
large enough need no padding. The *simple* strategy ignores the extents, and gives each buffer as
many elements as there are work-items, which is enough for most kernels.

Even with a validated extent, an index may overflow 32 bits in a large launch. So kernels with
configs of the simple strategy also have virtual launches on a CPU device (``access_check.py``).
They can only make the verdict stricter: they give up further configs, or demand padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmperf_common.analysis import Analysis, launch_sizes
from llmperf_common.records import Argument, LaunchConfig, Signature, Strategy
from workers.device.interface import AccessRange
from workers.execution.access_check import Ranges, beyond_known, leaves_own_buffers, not_launched
from workers.execution.task_state import TaskState
from workers.plan.strategies.buffers import extent_elements
from workers.plan.strategies.scalars import integer_scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class ByExtents:
    """What the validated extents of a kernel say about its configs.

    ``needs_padding``: whether a config that may run accesses bytes outside its own buffers.
    ``beyond``: the indices of the configs that access bytes even outside the padding, each with the
    reason.
    """

    needs_padding: bool
    beyond: tuple[tuple[int, str], ...] = ()


def wants_ranges(state: TaskState, *, can_try: bool, spares: bool) -> bool:
    """Note what a task's extents say; return whether virtual launches must find access ranges.

    Args:
        state: a planned task.
        can_try: whether a CPU device can run virtual launches.
        spares: whether to give up the configs that would access bytes even outside the padding.
    """
    signature = state.task.kernel.signature
    assert signature is not None, "a planned kernel has a signature"
    judged = judge_by_extents(signature, state.analysis, state.configs)
    if judged is None:
        return can_try
    for index, why in judged.beyond if spares else ():
        state.spare(index, not_launched(f"{why} by its memory analysis"))
    ignores_extents = any(one.strategies == (Strategy.SIMPLE,) for one in state.configs)
    state.needs_padding = (
        judged.needs_padding
        or bool(judged.beyond and not spares)
        or (ignores_extents and not can_try)
    )
    return can_try and ignores_extents


def judge_by_extents(
    signature: Signature, analysis: Analysis | None, configs: Sequence[LaunchConfig]
) -> ByExtents | None:
    """Return what validated extents say of all configs.

    Returns:
        The verdict; None if the extents do not decide, because a pointer argument has no validated
        extent, or a config lacks a size on which an extent depends.
    """
    pointers = [one for one in signature.arguments if one.kind.is_buffer]
    if analysis is None or analysis.failure:
        return None
    extents = [analysis.extent(one.position) for one in pointers]
    if not all(one is not None and one.validated for one in extents):
        return None
    ranges: list[Ranges] = []
    for config in configs:
        of_config = _ranges(signature, pointers, analysis, config)
        if of_config is None:
            return None
        ranges.append(of_config)
    beyond = dict(beyond_known(signature, configs, ranges))
    needs_padding = any(
        leaves_own_buffers(signature, config, of_config)
        for index, (config, of_config) in enumerate(zip(configs, ranges, strict=True))
        if index not in beyond
    )
    return ByExtents(needs_padding=needs_padding, beyond=tuple(sorted(beyond.items())))


def _ranges(
    signature: Signature, pointers: Sequence[Argument], analysis: Analysis, config: LaunchConfig
) -> Ranges | None:
    """Return the accesses of a launch; None if an extent cannot be evaluated for it."""
    values = {one.position: one.value for one in config.args if one.value is not None}
    scalars = {
        one.name: values[one.position]
        for one in integer_scalars(signature)
        if one.position in values
    }
    sizes = launch_sizes(config.global_size, config.local_size, scalars)
    ranges: list[AccessRange] = []
    for argument in pointers:
        elements = extent_elements(analysis.extent(argument.position), sizes)
        if elements is None:
            return None
        ranges.append(
            AccessRange(
                position=argument.position,
                start_bytes=0,
                end_bytes=elements * argument.element_bytes,
                site=0,
            )
        )
    return ranges
