"""Find the launch configs that must not run on a GPU: in trials they access memory not their own.

A config's own memory is its buffers with their padding, and the local memory of a work-group. The
trials run on a CPU device. ``extent_check.py`` decides what a kernel's extents say about its
configs, and whether the configs are tried.

Decides which configs are tried on the CPU device first, which accesses a GPU tolerates, and how
access ranges are extrapolated to larger configs. The trials run in killable children, like the
analysis. If a child hangs or dies, only the access ranges that it has already sent are known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from llmperf_common.analysis import ContentsRule
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, LaunchConfig, Signature, Strategy
from workers.device.interface import FRONT_PADDING_BYTES, PADDING_BYTES, AccessRange, ProbeRecord
from workers.execution.analysing import MAX_ATTEMPTS, max_attempts
from workers.execution.task_state import TaskState
from workers.sandbox.messages import AccessCheckJob, AccessRanges, FromChild

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""Seconds for all tried configs of a kernel. With three configs, seven of 130 kernels of the GitHub
corpus took longer (two processors). With three strategies there are up to nine configs; we have not
measured how many kernels then take longer."""
_AWAITED_TIMEOUT_S = 3.0
"""The same limit while the device has nothing else to do. It is shorter, because a fault costs less
than one second."""
_TRIED_ITEMS = (2**12, 2**16)
"""Numbers of work-items. For each input strategy, the smallest config is tried and, for each of
these numbers, the largest config with at most this number of work-items."""
_MOST_TRIED_ITEMS = 2**18
_LOCAL_SLACK_BYTES = 128
"""Step in bytes in which NVIDIA GPUs allocate local memory, according to NVIDIA's occupancy
calculator. So an access up to the end of a step should not fault (not measured). The check does not
round up the offset of an argument, either."""
_MOST_GROWTH = 3.0
"""Exponent: an access range's end grows at most with this power of the number of work-items."""


class AccessCheck:
    """The ``PoolWork`` of children that find the access ranges of planned configs.

    Args:
        is_awaited: tells whether the device has nothing else to do.
    """

    def __init__(self, *, is_awaited: Callable[[], bool] = lambda: False) -> None:
        self._is_awaited = is_awaited

    @property
    def timeout_s(self) -> float:
        """Seconds after which a child that has not finished its configs is killed."""
        return _AWAITED_TIMEOUT_S if self._is_awaited() else _TIMEOUT_S

    def job(self, state: TaskState) -> AccessCheckJob:
        """Return the job, and count the attempt."""
        state.num_access_attempts += 1
        kernel = state.task.kernel
        return AccessCheckJob(
            kernel=kernel,
            configs=tuple(state.configs[index] for index in tried_indices(state.configs)),
            without_barriers=state.num_access_attempts > MAX_ATTEMPTS,
        )

    def excuses_kill(self, state: TaskState) -> bool:
        """Excuse the first kill: do not count its attempt. Return False for a later kill."""
        is_excused = state.excuse_kill("access")
        state.num_access_attempts -= is_excused
        return is_excused

    def take(self, state: TaskState, answer: FromChild) -> bool:
        """Keep the records so far; after the last answer, give up the configs that they rule out.

        If a second child has sent fewer records than the first, the first child's records count.
        """
        assert isinstance(answer, AccessRanges), answer
        if len(answer.records) >= len(state.access_records):
            state.access_records = answer.records
        if answer.is_last:
            _spare_unbearable(state)
        return answer.is_last

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """Give up the configs that are ruled out by the records that came before the timeout."""
        name, num_known = state.task.kernel.name, len(state.access_records)
        _logger.info(
            "%s: the access ranges of %d configs are known; the next config was killed after %g s",
            name,
            num_known,
            after_s,
        )
        _spare_unbearable(state)

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Allow another attempt: a barrier or an earlier kernel may be to blame."""
        if report:
            _logger.warning("finding the access ranges of a kernel failed: %s", report)
        elif state.num_access_attempts < max_attempts(state.task.kernel):
            return True
        _spare_unbearable(state)
        return False

    def forget(self, state: TaskState) -> None:
        """Do nothing: an access check leaves no files."""


def _spare_unbearable(state: TaskState) -> None:
    """Give up the configs that a GPU would not tolerate; do nothing if the build failed."""
    if not state.configs[0].global_size:
        return
    signature = state.task.kernel.signature
    assert signature is not None, "a planned kernel has a signature"
    tried = list(zip(tried_indices(state.configs), state.access_records, strict=False))
    for index, why in unbearable(signature, state.configs, tried):
        state.spare(index, not_launched(why))
    is_clear = len(tried) == len(tried_indices(state.configs)) and not any(
        record is None
        or record.exceeded
        or leaves_own_buffers(signature, state.configs[index], record)
        for index, record in tried
    )
    state.needs_padding = state.needs_padding or not is_clear


def leaves_own_buffers(signature: Signature, config: LaunchConfig, record: ProbeRecord) -> bool:
    """Return whether a launch accesses bytes outside of the global buffers that its config gives."""
    return any(
        _below_bytes(record.access_ranges, one.position) > 0
        or _end_bytes(record.access_ranges, one.position)
        > _elements(config, one.position) * one.element_bytes
        for one in signature.arguments
        if one.kind is ArgumentKind.GLOBAL_BUFFER
    )


def not_launched(why: str) -> Failure:
    """Return the failure of a config that would access memory not its own."""
    detail = f"not launched: {why}"
    return Failure(code=FailureCode.QUARANTINED, stage=Stage.PROBE, detail=detail)


def tried_indices(configs: Sequence[LaunchConfig]) -> tuple[int, ...]:
    """Return the indices of the configs tried on a CPU device, fewest work-items first.

    They are the smallest config and up to two larger ones of each input strategy, because
    strategies give a buffer different sizes and the scalars different values. A config with planned
    row offsets is not tried: probes do not sort the offsets, and unsorted offsets lead to arbitrary
    accesses.
    """
    order = sorted(range(len(configs)), key=lambda index: (_items(configs[index]), index))
    order = [index for index in order if not _has_row_offsets(configs[index])]
    tried: set[int] = set()
    for strategy in Strategy:
        group = [index for index in order if strategy in configs[index].strategies]
        if not group or _items(configs[group[0]]) > _MOST_TRIED_ITEMS:
            continue
        tried.add(group[0])
        for most in _TRIED_ITEMS:
            tried.update([index for index in group if _items(configs[index]) <= most][-1:])
    return tuple(index for index in order if index in tried)


def unbearable(
    signature: Signature,
    configs: Sequence[LaunchConfig],
    tried: Sequence[tuple[int, ProbeRecord | None]],
) -> Iterator[tuple[int, str]]:
    """Yield the indices of the configs that a GPU would not tolerate, each with the reason.

    *Buffers.* If a tried config accesses bytes outside its buffers and their padding, it rules out
    all configs of its input strategies with as many work-items or more. Beyond the largest tried
    config, an access range is extrapolated: it grows with the same power of the number of
    work-items as between the tried configs.

    *Local memory.* A tried config is judged by its own record. Any other config is judged by the
    trials of its input strategies, if possible by those of equal local size. It is given up if its
    memory is too small by two estimates: for as many bytes as these trials reached, and for the
    same multiple of its arguments' sizes as in these trials.

    Args:
        signature: the kernel's signature.
        configs: all configs of the task. A buffer is as large as the largest launched config needs.
        tried: the indices of the tried configs, in the order of their work-items, each with the
            record of its trial.
    """
    seen = {index: record for index, record in tried if record is not None}
    found = _beyond_memory(
        signature,
        configs,
        of_buffers=lambda index: _related(index, configs, seen),
        of_local=lambda index: _local_trials(index, configs, seen),
    )
    yield from ((index, f"{why} on a CPU device") for index, why in found)


def beyond_known(
    signature: Signature, configs: Sequence[LaunchConfig], records: Sequence[ProbeRecord]
) -> Iterator[tuple[int, str]]:
    """Yield what ``unbearable`` yields if the accesses of each config are known."""

    def own(index: int) -> _Trials:
        return [(configs[index], records[index])]

    yield from _beyond_memory(signature, configs, of_buffers=own, of_local=own)


_Trials = Sequence[tuple[LaunchConfig, ProbeRecord]]


def _beyond_memory(
    signature: Signature,
    configs: Sequence[LaunchConfig],
    *,
    of_buffers: Callable[[int], _Trials],
    of_local: Callable[[int], _Trials],
) -> Iterator[tuple[int, str]]:
    """Yield the indices of the configs that access memory not their own, each with the reason.

    ``of_buffers`` and ``of_local`` return the trials by which a config is judged. No memory is
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


def _related(at: int, configs: Sequence[LaunchConfig], seen: Mapping[int, ProbeRecord]) -> _Trials:
    """Return the trials that share an input strategy with the config at an index."""
    return [
        (configs[index], record)
        for index, record in seen.items()
        if not set(configs[at].strategies).isdisjoint(configs[index].strategies)
    ]


def _local_trials(
    index: int, configs: Sequence[LaunchConfig], seen: Mapping[int, ProbeRecord]
) -> _Trials:
    """Return the trials from which a config's use of local memory is estimated."""
    if index in seen:
        return [(configs[index], seen[index])]
    related = _related(index, configs, seen)
    same = [one for one in related if one[0].local_size == configs[index].local_size]
    return same or related


def _beyond_buffers(
    config: LaunchConfig,
    largest: Mapping[int, int],
    signature: Signature,
    trials: _Trials,
) -> str:
    """Return why ``config`` accesses bytes outside its buffers and their padding, or "".

    ``largest``: by position, the number of elements for which each buffer is allocated.
    """
    items = _items(config)
    smaller = [(_items(one), record) for one, record in trials if _items(one) <= items]
    buffers = [one for one in signature.arguments if one.kind is ArgumentKind.GLOBAL_BUFFER]
    for argument in buffers if smaller else ():
        position = argument.position
        ends = [(size, _end_bytes(record.access_ranges, position)) for size, record in smaller]
        starts = [(size, _below_bytes(record.access_ranges, position)) for size, record in smaller]
        if _expected(ends, items) > largest[position] * argument.element_bytes + PADDING_BYTES:
            return f"it reaches beyond the end of argument {argument.name!r}"
        if _expected(starts, items) > FRONT_PADDING_BYTES:
            return f"it reaches before the start of argument {argument.name!r}"
    return ""


def _beyond_local_memory(config: LaunchConfig, signature: Signature, trials: _Trials) -> str:
    """Return the name of a ``__local`` argument that reaches outside the group's memory, or "".

    The arguments lie one after the other, behind the kernel's own ``__local`` arrays.
    """
    local = [one for one in signature.arguments if one.kind is ArgumentKind.LOCAL_BUFFER]
    total = sum(_local_bytes(config, one) for one in local)
    start = 0
    for argument in local:
        own = _local_bytes(config, argument)
        end = _of_local(_end_bytes, argument, own, trials)
        below = _of_local(_below_bytes, argument, own, trials)
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
    trials: _Trials,
) -> float:
    """Return the smaller of two estimates of the bytes that an argument of ``own_bytes`` needs."""
    reached = [
        (reach(record.access_ranges, argument.position), _local_bytes(one, argument))
        for one, record in trials
    ]
    most = max((size for size, _ in reached), default=0)
    multiple = max((size / held for size, held in reached), default=0.0)
    return min(most, multiple * own_bytes)


def _local_bytes(config: LaunchConfig, argument: Argument) -> int:
    return max(1, _elements(config, argument.position) * argument.element_bytes)


def _has_row_offsets(config: LaunchConfig) -> bool:
    return any(one.contents and one.contents.rule is ContentsRule.PREFIX for one in config.args)


def _expected(points: Sequence[tuple[int, int]], items: int) -> float:
    """Return the largest access range, in bytes, that is expected for a number of work-items."""
    most = max(reach for _, reach in points)
    (small, before), (large, last) = points[0], points[-1]
    if len(points) < 2 or large <= small or last <= before or before <= 0:
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


def _end_bytes(access_ranges: Sequence[AccessRange], position: int) -> int:
    return max((one.end_bytes for one in access_ranges if one.position == position), default=0)


def _below_bytes(access_ranges: Sequence[AccessRange], position: int) -> int:
    return max((-one.start_bytes for one in access_ranges if one.position == position), default=0)
