"""Which launch configs a GPU must not see: those that a CPU device has shown to leave their buffers.

Owns which configs are tried before, what a GPU bears, and how a reach is carried on to larger configs. The work of
killable children, as analysis is; where one hangs or dies nothing is learnt, and the configs are launched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import ArgumentKind, LaunchConfig, Signature
from workers.analysing import MAX_ATTEMPTS, max_attempts
from workers.channel import FromChild, Reached, ReachJob
from workers.device.interface import ROOM_BYTES, ProbeRecord, Reach
from workers.task_state import TaskState

_TIMEOUT_S = 20.0
_TRIED_ITEMS = (2**12, 2**16)
"""Beside the smallest config, the largest of no more work-items are tried."""
_MOST_TRIED_ITEMS = 2**18
_BELOW_BYTES = 2**21
"""Before a buffer's start, so much or more is not borne: the driver maps pages of this size."""
_MOST_GROWTH = 3.0
"""A reach grows at most with this power of the number of work-items."""


class ReachWork:
    """The ``PoolWork`` of children that look how far planned configs reach."""

    @property
    def timeout_s(self) -> float:
        """A child without an answer for this long is killed."""
        return _TIMEOUT_S

    def job(self, state: TaskState) -> ReachJob:
        """Return the job, and count the attempt."""
        state.num_reach_attempts += 1
        kernel = state.task.kernel
        has_barriers = max_attempts(kernel) > MAX_ATTEMPTS
        return ReachJob(
            kernel=kernel,
            configs=tuple(state.configs[index] for index in tried_indices(state.configs)),
            without_barriers=has_barriers and state.num_reach_attempts > 1,
        )

    def take(self, state: TaskState, answer: FromChild) -> None:
        """Give up the configs that would leave their buffers."""
        assert isinstance(answer, Reached), answer
        signature = state.task.kernel.signature
        assert signature is not None, "a planned kernel has a signature"
        tried = list(zip(tried_indices(state.configs), answer.records, strict=True))
        for index, why in unbearable(signature, state.configs, tried):
            detail = f"not launched: {why}"
            failure = Failure(code=FailureCode.QUARANTINED, stage=Stage.PROBE, detail=detail)
            state.record(index, failure)

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """Nothing was learnt."""

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Try once more, without barriers, where there are some."""
        return state.num_reach_attempts == 1 and max_attempts(state.task.kernel) > MAX_ATTEMPTS

    def forget(self, state: TaskState) -> None:
        """Nothing is left behind."""


def tried_indices(configs: Sequence[LaunchConfig]) -> tuple[int, ...]:
    """Return which configs are tried on a CPU device, by work-items: the smallest, and two larger ones."""
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

    A config that was tried and leaves its buffers takes with it all that have as many work-items. Beyond the largest that
    was tried a reach is carried on by the power of the work-items with which it grew last.

    Args:
        signature: of the kernel.
        configs: all of the task; a buffer is as large as the largest of them has it.
        tried: indices with what was seen, by work-items.
    """
    seen = [(configs[index], record) for index, record in tried if record is not None]
    for index, config in enumerate(configs):
        smaller = [one for one in seen if _items(one[0]) <= _items(config)]
        for argument in signature.arguments:
            if argument.kind is not ArgumentKind.GLOBAL_BUFFER:
                continue
            largest = max(_elements(one, argument.position) for one in configs)
            held_bytes = largest * argument.element_bytes + ROOM_BYTES
            for name, limit, reach_of in (
                ("beyond the end", held_bytes, _end_bytes),
                ("before the start", _BELOW_BYTES, _below_bytes),
            ):
                points = [
                    (_items(one), reach_of(record.reaches, argument.position))
                    for one, record in smaller
                ]
                if points and _expected(points, _items(config)) > limit:
                    yield (
                        index,
                        f"it reaches {name} of argument {argument.name!r}, as on a CPU device",
                    )
                    break
            else:
                continue
            break


def _expected(points: Sequence[tuple[int, int]], items: int) -> float:
    """Return the largest reach to be expected of so many work-items."""
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


def _end_bytes(reaches: Sequence[Reach], position: int) -> int:
    return max((one.end_bytes for one in reaches if one.position == position), default=0)


def _below_bytes(reaches: Sequence[Reach], position: int) -> int:
    return max((-one.start_bytes for one in reaches if one.position == position), default=0)
