"""Plan and arrays for models that encode a kernel once and query it with several launches.

The encoder reads the kernel alone; its launches read the encoded kernel by cross-attention. A
*pack* in this module is one kernel with launches, and its length is that of the padded prefix.
Prefixes are padded to one of at most four lengths, so that there is little padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.tokens import Tokens
from trainer.packing.batch import QueryBatch
from trainer.packing.groups import Groups, Launches, fixed_groups, launches_of, shuffled_groups
from trainer.packing.layout import NO_LAUNCH
from trainer.packing.packs import Indices, Packs, members, starts_of
from trainer.packing.plan import EpochPlan
from trainer.regressor_config import PackingConfig

MAX_BUCKETS = 4
"""Maximum number of lengths of padded prefixes; the model is compiled once for each length."""

_PREFIX_MULTIPLE = 32
_SUFFIX_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryShape:
    """The shape that all batches of a run have.

    Attributes:
        prefix_lengths: lengths of padded prefixes in tokens, ascending, at most ``MAX_BUCKETS``.
        launches: maximum number of launches of a kernel in a batch.
        suffix: length of padded suffixes in tokens.
    """

    prefix_lengths: tuple[int, ...]
    launches: int
    suffix: int

    def kernels_per_pass(self, length: int, config: PackingConfig) -> int:
        """Return how many kernels with prefixes of ``length`` tokens fit into a forward pass."""
        return max(1, config.tokens_per_pass // (length + self.launches * self.suffix))


def query_shape(launches: Launches, config: PackingConfig) -> QueryShape:
    """Return the shape for the launches of a run (train and validation) or of a prediction.

    The shape's ``prefix_lengths`` are the lengths that need the least padding.
    """
    groups = _fixed(launches, config)
    longest_suffix = int(np.max(launches.suffix, initial=1))
    return QueryShape(
        prefix_lengths=_best_lengths(launches.prefix[groups.kernel]),
        launches=int(np.max(groups.stop - groups.start, initial=1)),
        suffix=-(-longest_suffix // _SUFFIX_MULTIPLE) * _SUFFIX_MULTIPLE,
    )


def plan_query_epoch(
    launches: Launches, shape: QueryShape, config: PackingConfig, *, seed: int, epoch: int
) -> EpochPlan:
    """Divide the launches of one epoch into steps of about ``tokens_per_step`` tokens.

    Tokens of prefixes and suffixes count; padding does not count.

    Args:
        launches: the launches of the train part; each comes once.
        shape: the run's shape.
        config: ``configs_per_kernel`` and ``tokens_per_step``.
        seed: the run's seed.
        epoch: number of the epoch, from 0.
    """
    groups = shuffled_groups(
        launches,
        most=config.configs_per_kernel,
        longest=_unlimited(launches, config),
        seed=seed,
        epoch=epoch,
    )
    packs = _as_packs(groups, launches, shape)
    suffix = starts_of(launches.suffix[groups.launch])
    tokens = starts_of(launches.prefix[groups.kernel] + suffix[groups.stop] - suffix[groups.start])
    num_steps = min(len(packs), -(-int(tokens[-1]) // config.tokens_per_step))
    # A group belongs to the step of its middle token, so step sizes differ by at most a group.
    middle = (tokens[1:] + tokens[:-1]) / 2
    step = np.minimum((middle * num_steps / max(1, tokens[-1])).astype(np.int64), num_steps - 1)
    counts = np.bincount(step, minlength=num_steps)
    return EpochPlan(packs=packs, step_start=starts_of(counts[counts > 0]))


def query_packs(launches: Launches, shape: QueryShape, config: PackingConfig) -> Packs:
    """Return packs of the launches in the order of kernels and rows."""
    return _as_packs(_fixed(launches, config), launches, shape)


def query_packs_for(
    tokens: Tokens, rows: Indices, config: PackingConfig
) -> tuple[Packs, QueryShape]:
    """Return packs of any launches, for prediction, and their shape.

    A pack has as many launches of its kernel as ``tokens_per_pass`` allows, so that a kernel is
    encoded as seldom as possible.

    Args:
        tokens: all launches.
        rows: the rows of ``tokens`` to predict, each once.
        config: ``tokens_per_pass``.

    Raises:
        BadInput: A prefix with one of its suffixes has more tokens than a pass.
    """
    launches = launches_of(tokens, rows, config.tokens_per_pass)
    longest = int(np.max(launches.suffix, initial=1))
    capacity = max(1, (config.tokens_per_pass - int(np.max(launches.prefix, initial=0))) // longest)
    wide = config.model_copy(update={"configs_per_kernel": capacity})
    shape = query_shape(launches, wide)
    return query_packs(launches, shape, wide), shape


def query_batch(packs: Packs, tokens: Tokens, shape: QueryShape) -> QueryBatch:
    """Return packs of one length as a batch; a pack without a kernel becomes padding.

    Args:
        packs: g packs, at least one, all of one length t, each with one kernel or none.
        tokens: the tokens of their launches.
        shape: capacity for k launches of s tokens.

    Raises:
        ValueError: The packs differ in length, there is no pack, or a pack exceeds ``shape``.
    """
    if len(packs) == 0 or np.any(packs.length != packs.length[0]):
        raise ValueError("a batch needs at least one pack, and its packs must have the same length")
    length, capacity, width = int(packs.length[0]), shape.launches, shape.suffix
    prefix_begin = tokens.prefix_start[packs.kernel]
    prefix_count = tokens.prefix_start[packs.kernel + 1] - prefix_begin
    suffix_begin = tokens.suffix_start[packs.launch]
    suffix_count = tokens.suffix_start[packs.launch + 1] - suffix_begin
    if (
        np.any(np.diff(packs.part_start) > 1)
        or np.any(packs.num_launches > capacity)
        or np.any(prefix_count > length)
        or np.any(suffix_count > width)
    ):
        raise ValueError(
            f"a pack exceeds its capacity: one kernel of {length} tokens, and {capacity} launches "
            f"of {width} tokens each"
        )
    pack, part = packs.pack_of_part, packs.part_of_launch
    slot = pack[part] * capacity + np.arange(len(part)) - packs.launch_start[part]
    prefix_ids = np.zeros(len(packs) * length, dtype=np.int32)
    prefix_length = np.zeros(len(packs), dtype=np.int32)
    prefix_ids[members(pack * length, prefix_count)] = tokens.prefix_ids[
        members(prefix_begin, prefix_count)
    ]
    prefix_length[pack] = prefix_count
    num_slots = len(packs) * capacity
    suffix_ids = np.zeros(num_slots * width, dtype=np.int32)
    suffix_values = np.zeros(num_slots * width, dtype=np.float64)
    suffix_length = np.zeros(num_slots, dtype=np.int32)
    row = np.full(num_slots, NO_LAUNCH, dtype=np.int64)
    target = members(slot * width, suffix_count)
    source = members(suffix_begin, suffix_count)
    suffix_ids[target] = tokens.suffix_ids[source]
    suffix_values[target] = tokens.suffix_values[source]
    suffix_length[slot] = suffix_count
    row[slot] = packs.launch
    by_launch = (len(packs), capacity)
    return QueryBatch(
        prefix_ids=prefix_ids.reshape(len(packs), length),
        prefix_length=prefix_length,
        suffix_ids=suffix_ids.reshape(*by_launch, width),
        suffix_values=suffix_values.reshape(*by_launch, width),
        suffix_length=suffix_length.reshape(by_launch),
        row=row.reshape(by_launch),
    )


def _fixed(launches: Launches, config: PackingConfig) -> Groups:
    most = config.configs_per_kernel
    return fixed_groups(launches, most=most, longest=_unlimited(launches, config))


def _unlimited(launches: Launches, config: PackingConfig) -> int:
    """Return a length that limits no group, because launches do not share a sequence here."""
    longest_suffix = int(np.max(launches.suffix, initial=1))
    return int(np.max(launches.prefix, initial=0)) + config.configs_per_kernel * longest_suffix


def _as_packs(groups: Groups, launches: Launches, shape: QueryShape) -> Packs:
    ladder = np.array(shape.prefix_lengths, dtype=np.int64)
    count = groups.stop - groups.start
    return Packs(
        length=ladder[np.searchsorted(ladder, launches.prefix[groups.kernel])],
        part_start=np.arange(len(groups.kernel) + 1),
        kernel=groups.kernel,
        launch_start=starts_of(count),
        launch=launches.row[groups.launch[members(groups.start, count)]],
    )


def _best_lengths(prefixes: Indices) -> tuple[int, ...]:
    """Return at most ``MAX_BUCKETS`` lengths, chosen for the least padding of the prefixes."""
    rounded = np.maximum(1, -(-prefixes // _PREFIX_MULTIPLE)) * _PREFIX_MULTIPLE
    length, count = np.unique(rounded, return_counts=True)
    if len(length) == 0:
        return (_PREFIX_MULTIPLE,)
    before = starts_of(count)
    # Dynamic programming. padded[j]: least tokens of all prefixes up to the j-th length; each
    # iteration allows one bucket more.
    padded = np.concatenate([[0.0], np.full(len(length), np.inf)])
    came_from = []
    for _ in range(min(MAX_BUCKETS, len(length))):
        # Row i, column j: the last bucket has the lengths i to j, all padded to the j-th length.
        last = (before[None, 1:] - before[:-1, None]) * length[None, :]
        total = np.where(np.tri(len(length), dtype=bool).T, padded[:-1, None] + last, np.inf)
        came_from.append(np.argmin(total, axis=0))
        padded = np.concatenate([[0.0], np.min(total, axis=0)])
    end = len(length)
    chosen = []
    for best in reversed(came_from):
        chosen.append(int(length[end - 1]))
        end = int(best[end - 1])
        if end == 0:
            break
    return tuple(reversed(chosen))
