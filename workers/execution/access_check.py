"""Find the launch configs that must not run on a GPU, because they would leave their own memory.

A config's own memory is its buffers with their padding, and the local memory of a work-group. What
a config accesses is known from a virtual launch on a CPU device (``workers/work``).
``extent_check.py`` decides what a kernel's extents say about its configs, and whether virtual
launches are needed.

Decides which accesses a GPU tolerates, and how access ranges are extrapolated to configs whose
virtual launch did not end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, LaunchConfig, Signature
from workers.device.interface import FRONT_PADDING_BYTES, PADDING_BYTES, AccessRange
from workers.execution.task_state import TaskState

_LOCAL_SLACK_BYTES = 128
"""Step in bytes in which NVIDIA GPUs allocate local memory, according to NVIDIA's occupancy
calculator. So an access up to the end of a step should not fault (not measured). Whether a driver
also rounds up the offset of an argument is not considered."""
_MOST_GROWTH = 3.0
"""Exponent: an access range's end grows at most with this power of the number of work-items."""

Ranges = Sequence[AccessRange]
"""The access ranges of one launch."""


def spare_unbearable(
    state: TaskState, ranges: Mapping[int, Ranges], complete: Collection[int]
) -> None:
    """Give up the configs that a GPU would not tolerate; note whether buffers need padding.

    Args:
        state: a planned task.
        ranges: the known access ranges, by the index of the config.
        complete: the configs whose ranges say how far the launch reaches.
    """
    signature = state.task.kernel.signature
    assert signature is not None, "a planned kernel has a signature"
    for index, why in unbearable(signature, state.configs, ranges, complete):
        state.spare(index, not_launched(why))
    is_clear = all(
        index in complete
        and not leaves_own_buffers(signature, state.configs[index], ranges.get(index, ()))
        for index in range(len(state.configs))
    )
    state.needs_padding = state.needs_padding or not is_clear


def leaves_own_buffers(signature: Signature, config: LaunchConfig, ranges: Ranges) -> bool:
    """Return whether a launch accesses bytes outside the global buffers that its config gives."""
    return any(
        _below_bytes(ranges, one.position) > 0
        or _end_bytes(ranges, one.position) > _elements(config, one.position) * one.element_bytes
        for one in signature.arguments
        if one.kind is ArgumentKind.GLOBAL_BUFFER
    )


def not_launched(why: str) -> Failure:
    """Return the failure of a config that would access memory not its own."""
    detail = f"not launched: {why}"
    return Failure(code=FailureCode.QUARANTINED, stage=Stage.PROBE, detail=detail)


def unbearable(
    signature: Signature,
    configs: Sequence[LaunchConfig],
    ranges: Mapping[int, Ranges],
    complete: Collection[int],
) -> Iterator[tuple[int, str]]:
    """Yield the indices of the configs that a GPU would not tolerate, each with the reason.

    A config whose ranges are complete is judged by them alone. Any other config is judged by its
    own ranges so far, and by the ranges of its *relatives*: the complete configs that share an
    input strategy with it.

    *Buffers.* Only relatives with at most as many work-items count. The growth of the access range
    from one of these to another is fitted by a power of the number of work-items, and continued to
    the config.

    *Local memory.* Relatives of equal local size count, or all relatives if there are none. Two
    numbers of bytes are estimated: the largest number that a relative reached, and the size of the
    config's argument times the largest such multiple that a relative reached. The config is given
    up if even the smaller number does not fit.

    Args:
        signature: the kernel's signature.
        configs: all configs of the task. A buffer is as large as the largest launched config needs.
        ranges: the known access ranges, by the index of the config.
        complete: the configs whose ranges say how far the launch reaches.
    """
    order = sorted(complete, key=lambda index: (_items(configs[index]), index))

    def of_buffers(index: int) -> _Launches:
        own = (configs[index], ranges.get(index, ()))
        return [own] if index in complete else [*_related(index, configs, ranges, order), own]

    def of_local(index: int) -> _Launches:
        if index in complete:
            return of_buffers(index)
        related = _related(index, configs, ranges, order)
        same = [one for one in related if one[0].local_size == configs[index].local_size]
        return [*(same or related), (configs[index], ranges.get(index, ()))]

    found = _beyond_memory(signature, configs, of_buffers=of_buffers, of_local=of_local)
    yield from ((index, f"{why} on a CPU device") for index, why in found)


def beyond_known(
    signature: Signature, configs: Sequence[LaunchConfig], ranges: Sequence[Ranges]
) -> Iterator[tuple[int, str]]:
    """Yield what ``unbearable`` yields if the accesses of each config are known."""

    def own(index: int) -> _Launches:
        return [(configs[index], ranges[index])]

    yield from _beyond_memory(signature, configs, of_buffers=own, of_local=own)


_Launches = Sequence[tuple[LaunchConfig, Ranges]]


def _beyond_memory(
    signature: Signature,
    configs: Sequence[LaunchConfig],
    *,
    of_buffers: Callable[[int], _Launches],
    of_local: Callable[[int], _Launches],
) -> Iterator[tuple[int, str]]:
    """Yield the indices of the configs that access memory not their own, each with the reason.

    ``of_buffers`` and ``of_local`` return the launches by which a config is judged. No memory is
    allocated for a config that is given up, so the buffers of other configs may get smaller.
    """
    spared: dict[int, str] = {}
    for index, config in enumerate(configs):
        name = _beyond_local_memory(config, signature, of_local(index))
        if name:
            spared[index] = f"it accesses memory outside its local memory through argument {name!r}"
    while True:
        kept = {index: one for index, one in enumerate(configs) if index not in spared}
        largest = _largest_elements(kept.values())
        found = {
            index: why
            for index, one in kept.items()
            if (why := _beyond_buffers(one, largest, signature, of_buffers(index)))
        }
        if not found:
            break
        spared |= found
    yield from spared.items()


def _related(
    at: int,
    configs: Sequence[LaunchConfig],
    ranges: Mapping[int, Ranges],
    order: Sequence[int],
) -> _Launches:
    """Return the launches in ``order`` that share an input strategy with the config at ``at``."""
    return [
        (configs[index], ranges.get(index, ()))
        for index in order
        if not set(configs[at].strategies).isdisjoint(configs[index].strategies)
    ]


def _beyond_buffers(
    config: LaunchConfig,
    largest: Mapping[int, int],
    signature: Signature,
    launches: _Launches,
) -> str:
    """Return why ``config`` accesses bytes outside its buffers and their padding, or "".

    ``largest``: by position, the number of elements for which each buffer is allocated.
    """
    items = _items(config)
    smaller = [(_items(one), ranges) for one, ranges in launches if _items(one) <= items]
    buffers = [one for one in signature.arguments if one.kind is ArgumentKind.GLOBAL_BUFFER]
    for argument in buffers if smaller else ():
        position = argument.position
        ends = [(size, _end_bytes(ranges, position)) for size, ranges in smaller]
        starts = [(size, _below_bytes(ranges, position)) for size, ranges in smaller]
        if _expected(ends, items) > largest[position] * argument.element_bytes + PADDING_BYTES:
            return f"it reaches beyond the end of argument {argument.name!r}"
        if _expected(starts, items) > FRONT_PADDING_BYTES:
            return f"it reaches before the start of argument {argument.name!r}"
    return ""


def _beyond_local_memory(config: LaunchConfig, signature: Signature, launches: _Launches) -> str:
    """Return the name of a ``__local`` argument that reaches outside the group's memory, or "".

    The arguments lie one after the other, behind the kernel's own ``__local`` arrays.
    """
    local = [one for one in signature.arguments if one.kind is ArgumentKind.LOCAL_BUFFER]
    total = sum(_local_bytes(config, one) for one in local)
    start = 0
    for argument in local:
        own = _local_bytes(config, argument)
        end = _of_local(_end_bytes, argument, own, launches)
        below = _of_local(_below_bytes, argument, own, launches)
        if start + end > total + _LOCAL_SLACK_BYTES:
            return argument.name
        if below > start + signature.static_local_bytes:
            return argument.name
        start += own
    return ""


def _of_local(
    reach: Callable[[Sequence[AccessRange], int], int],
    argument: Argument,
    own_bytes: int,
    launches: _Launches,
) -> float:
    """Return the bytes that an argument of ``own_bytes`` needs, the smaller of two estimates."""
    reached = [
        (reach(ranges, argument.position), _local_bytes(one, argument)) for one, ranges in launches
    ]
    most = max((size for size, _ in reached), default=0)
    multiple = max((size / held for size, held in reached), default=0.0)
    return min(most, multiple * own_bytes)


def _local_bytes(config: LaunchConfig, argument: Argument) -> int:
    return max(1, _elements(config, argument.position) * argument.element_bytes)


def _expected(points: Sequence[tuple[int, int]], items: int) -> float:
    """Return the largest access range, in bytes, that is expected for a number of work-items."""
    most = max(reach for _, reach in points)
    smaller = [point for point in points if point[0] < items]
    if len(smaller) < 2:
        return most
    small, before = smaller[0]
    large, last = max(smaller, key=lambda point: (point[1], point[0]))
    if large <= small or last <= before or before <= 0:
        return most
    power = min(_MOST_GROWTH, math.log(last / before) / math.log(large / small))
    carried_on: float = last * (items / large) ** power
    return max(most, carried_on)


def _items(config: LaunchConfig) -> int:
    return math.prod(config.global_size)


def _largest_elements(configs: Iterable[LaunchConfig]) -> dict[int, int]:
    """Return the largest number of elements that a config gives each argument, by position."""
    largest: dict[int, int] = {}
    for config in configs:
        for one in config.args:
            largest[one.position] = max(largest.get(one.position, 0), one.elements or 0)
    return largest


def _elements(config: LaunchConfig, position: int) -> int:
    return next((one.elements or 0 for one in config.args if one.position == position), 0)


def _end_bytes(ranges: Ranges, position: int) -> int:
    return max((one.end_bytes for one in ranges if one.position == position), default=0)


def _below_bytes(ranges: Ranges, position: int) -> int:
    return max((-one.start_bytes for one in ranges if one.position == position), default=0)
