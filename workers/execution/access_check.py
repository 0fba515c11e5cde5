"""Which launch configs a GPU must not see: those that a CPU device has shown to leave their buffers.

Owns which configs are tried before, what a GPU bears, and how access ranges are extrapolated to larger configs. The work of
killable children, as analysis is; where one hangs or dies what it had found by then is all that is known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from llmperf_common.analysis import ContentsRule
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, LaunchConfig, Signature
from workers.device.interface import FRONT_PADDING_BYTES, PADDING_BYTES, AccessRange, ProbeRecord
from workers.execution.analysing import MAX_ATTEMPTS, max_attempts
from workers.execution.task_state import TaskState
from workers.sandbox.channel import AccessCheckJob, AccessRanges, FromChild

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""For all configs of a kernel. Of 130 kernels of the GitHub corpus seven took longer, six of them more than 20 s (two processors)."""
_AWAITED_TIMEOUT_S = 3.0
"""Where the device has nothing to do meanwhile: a fault costs less than a second."""
_TRIED_ITEMS = (2**12, 2**16)
"""Beside the smallest config, the largest of no more work-items are tried."""
_MOST_TRIED_ITEMS = 2**18
_MOST_GROWTH = 3.0
"""Exponent: the end of an access range grows at most with this power of the number of work-items."""


class AccessCheck:
    """The ``PoolWork`` of children that find the access ranges of planned configs.

    Args:
        is_awaited: tells whether the device has nothing else to do.
    """

    def __init__(self, *, is_awaited: Callable[[], bool] = lambda: False) -> None:
        self._is_awaited = is_awaited

    @property
    def timeout_s(self) -> float:
        """A child that is not through with its configs after this long is killed."""
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
        """Take the attempt back, once."""
        is_excused = state.excuse_kill("access")
        state.num_access_attempts -= is_excused
        return is_excused

    def take(self, state: TaskState, answer: FromChild) -> bool:
        """Keep what is known by now, and judge by it once no more will come.

        A second child does not take back what a first one had told before it ended.
        """
        assert isinstance(answer, AccessRanges), answer
        if len(answer.records) >= len(state.access_records):
            state.access_records = answer.records
        if answer.is_last:
            _spare_unbearable(state)
        return answer.is_last

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """Judge by the configs that came before the one that took too long."""
        name, num_known = state.task.kernel.name, len(state.access_records)
        _logger.info(
            "%s: access ranges known of %d configs, not of the next after %g s",
            name,
            num_known,
            after_s,
        )
        _spare_unbearable(state)

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Try again as an analysis is: a child may end for what it did before, or for a barrier."""
        if report:
            _logger.warning("finding the access ranges of a kernel failed: %s", report)
        elif state.num_access_attempts < max_attempts(state.task.kernel):
            return True
        _spare_unbearable(state)
        return False

    def forget(self, state: TaskState) -> None:
        """Nothing is left behind."""


def _spare_unbearable(state: TaskState) -> None:
    """Give up the configs that would leave their buffers; nothing is left to give up where the kernel could not be built."""
    if not state.configs[0].global_size:
        return
    signature = state.task.kernel.signature
    assert signature is not None, "a planned kernel has a signature"
    tried = list(zip(tried_indices(state.configs), state.access_records, strict=False))
    for index, why in unbearable(signature, state.configs, tried):
        detail = f"not launched: {why}"
        failure = Failure(code=FailureCode.QUARANTINED, stage=Stage.PROBE, detail=detail)
        state.spare(index, failure)


def tried_indices(configs: Sequence[LaunchConfig]) -> tuple[int, ...]:
    """Return which configs are tried on a CPU device, by work-items: the smallest, and two larger ones.

    None where row offsets are planned: probes do not sort them, and what is no row reaches anywhere.
    """
    if any(_has_row_offsets(config) for config in configs):
        return ()
    order = sorted(range(len(configs)), key=lambda index: (_items(configs[index]), index))
    if not order or _items(configs[order[0]]) > _MOST_TRIED_ITEMS:
        return ()
    tried = [order[0]]
    for most in _TRIED_ITEMS:
        within = [index for index in order if _items(configs[index]) <= most]
        if within and within[-1] not in tried:
            tried.append(within[-1])
    return tuple(tried)


def unbearable(
    signature: Signature,
    configs: Sequence[LaunchConfig],
    tried: Sequence[tuple[int, ProbeRecord | None]],
) -> Iterator[tuple[int, str]]:
    """Yield the configs that a GPU would not bear, and why.

    A config that was tried and leaves its buffers and their padding takes with it all that have as many work-items. Beyond
    the largest that was tried an access range is extrapolated by the power of the work-items with which it grew last.

    Args:
        signature: of the kernel.
        configs: all of the task; a buffer is as large as the largest needs it of those that are launched.
        tried: indices with what was seen, by work-items.
    """
    seen = [(configs[index], record) for index, record in tried if record is not None]
    buffers = [one for one in signature.arguments if one.kind is ArgumentKind.GLOBAL_BUFFER]
    spared: dict[int, str] = {}
    while True:
        kept = {index: one for index, one in enumerate(configs) if index not in spared}
        found = {
            index: why for index, one in kept.items() if (why := _why(one, kept, buffers, seen))
        }
        if not found:
            break
        spared |= found
    yield from spared.items()


def _why(
    config: LaunchConfig,
    kept: Mapping[int, LaunchConfig],
    buffers: Sequence[Argument],
    seen: Sequence[tuple[LaunchConfig, ProbeRecord]],
) -> str:
    items = _items(config)
    smaller = [(_items(one), record) for one, record in seen if _items(one) <= items]
    for argument in buffers if smaller else ():
        position = argument.position
        ends = [(size, _end_bytes(record.access_ranges, position)) for size, record in smaller]
        starts = [(size, _below_bytes(record.access_ranges, position)) for size, record in smaller]
        largest = max(_elements(one, position) for one in kept.values())
        if _expected(ends, items) > largest * argument.element_bytes + PADDING_BYTES:
            return f"it reaches beyond the end of argument {argument.name!r}, as on a CPU device"
        if _expected(starts, items) > FRONT_PADDING_BYTES:
            return f"it reaches before the start of argument {argument.name!r}, as on a CPU device"
    return ""


def _has_row_offsets(config: LaunchConfig) -> bool:
    return any(one.contents and one.contents.rule is ContentsRule.PREFIX for one in config.args)


def _expected(points: Sequence[tuple[int, int]], items: int) -> float:
    """Return the largest access range to be expected of so many work-items."""
    most = max(reach for _, reach in points)
    (small, before), (large, last) = points[0], points[-1]
    if len(points) < 2 or large <= small or last <= before or before <= 0:
        return most
    power = min(_MOST_GROWTH, math.log(last / before) / math.log(large / small))
    carried_on: float = last * (items / large) ** power
    return max(most, carried_on)


def _items(config: LaunchConfig) -> int:
    return math.prod(config.global_size)


def _elements(config: LaunchConfig, position: int) -> int:
    return next((one.elements or 0 for one in config.args if one.position == position), 0)


def _end_bytes(access_ranges: Sequence[AccessRange], position: int) -> int:
    return max((one.end_bytes for one in access_ranges if one.position == position), default=0)


def _below_bytes(access_ranges: Sequence[AccessRange], position: int) -> int:
    return max((-one.start_bytes for one in access_ranges if one.position == position), default=0)
