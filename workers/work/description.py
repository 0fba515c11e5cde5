"""Describe a virtual launch as the words that ``hooks.cl`` reads: sizes and contents of buffers.

Owns the words' layout. ``workers/plan/inputs.py`` derives contents from seed, argument and index.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llmperf_common.analysis import ContentsRule
from llmperf_common.records import Access, Argument, ArgumentKind, LaunchConfig
from workers.plan.inputs import SCALAR_TYPES, FillKind, FillSpec, fill_specs
from workers.work.counted_copy import (
    DESCRIBED_AT,
    DESCRIBED_WORDS,
    SLACK_BYTES,
    UNIT_WORDS,
    CountedCopy,
)
from workers.work.sampling.units import Unit

STORE_BYTES = 2**18
"""Number of bytes that are allocated for a buffer, a power of two. Accesses beyond them are folded
back to lower addresses."""
BLOCK_BYTES = 32
_MOST_LOCAL_BYTES = 2**16
_LEAF_WORDS = 8
_KINDS = {
    FillKind.FLOAT32: 1,
    FillKind.FLOAT64: 2,
    FillKind.FLOAT16: 3,
    FillKind.BOOL: 4,
}
_INTEGER = 5
_RULES = {
    ContentsRule.BOUNDED: 1,
    ContentsRule.PREFIX: 2,
    ContentsRule.FLAGS: 3,
    ContentsRule.SIGNED: 4,
}
STORE_BLOCKS = (STORE_BYTES + SLACK_BYTES) // BLOCK_BYTES + 1


def local_bytes(argument: Argument, elements: int) -> int:
    """Return the bytes allocated for a ``__local`` argument, a power of two."""
    wanted = max(BLOCK_BYTES, elements * argument.element_bytes)
    return min(_MOST_LOCAL_BYTES, 1 << (wanted - 1).bit_length())


def described(
    config: LaunchConfig,
    arguments: Sequence[Argument],
    copy: CountedCopy,
) -> npt.NDArray[np.uint64]:
    """Return the words of a virtual launch without its units; word 15: where the units begin."""
    dims = len(config.global_size)
    ones = (1,) * (3 - dims)
    groups = tuple(n // side for n, side in zip(config.global_size, config.local_size, strict=True))
    units_at = DESCRIBED_AT + DESCRIBED_WORDS * len(copy.positions)
    buffers, leaves = _buffers(config, arguments, copy, units_at)
    units_at += len(leaves)
    head = [*config.global_size, *ones, *config.local_size, *ones, *groups, *ones]
    head += [dims, 0, 0, 0, 0, 0, units_at]
    words = [*head, *buffers, *leaves]
    return np.array([one & (2**64 - 1) for one in words], dtype=np.uint64)


def with_units(
    words: npt.NDArray[np.uint64],
    units: Sequence[Unit],
    *,
    epoch: int,
    most_turns: int,
    is_watched: bool,
) -> npt.NDArray[np.uint64]:
    """Return the words for a run of units; a watched run records the bytes that groups touch."""
    watched = {group: 1 + number for number, group in enumerate(watched_groups(units))}
    rows = np.zeros((len(units), UNIT_WORDS), dtype=np.uint64)
    rows[:, :3] = [(unit.group, unit.first_lane, unit.num_lanes) for unit in units]
    rows[1:, 3] = np.cumsum(rows[:-1, 2])
    if is_watched:
        rows[:, 4] = [watched[unit.group] for unit in units]
    run = np.concatenate((words, rows.ravel()))
    run[[10, 12, 14]] = epoch, len(units), most_turns
    return run


def watched_groups(units: Sequence[Unit]) -> tuple[int, ...]:
    """Return the work-groups of units, in the order in which a watched run numbers them."""
    return tuple(dict.fromkeys(unit.group for unit in units))


def _buffers(
    config: LaunchConfig, arguments: Sequence[Argument], copy: CountedCopy, leaves_at: int
) -> tuple[list[int], list[int]]:
    given = {one.position: one for one in config.args}
    by_position = {one.position: one for one in arguments}
    words: list[int] = []
    leaves: list[int] = []
    for row, position in enumerate(copy.positions):
        argument, launched = by_position[position], given[position]
        elements = launched.elements or 0
        if argument.kind is ArgumentKind.LOCAL_BUFFER:
            words += [0, 0, 0, 0, 0, 0, 0, 0, local_bytes(argument, elements) - 1, 0]
            continue
        specs: tuple[FillSpec, ...] = ()
        if argument.access is not Access.WRITE:
            specs = fill_specs(
                argument, elements=elements, seed=config.seed, contents=launched.contents
            )
        plain = _spec_words(specs[0]) if specs and specs[0].place is None else [0, 0, 0, 0]
        here = [one for one in specs if one.place is not None]
        at = leaves_at + len(leaves)
        for spec in here:
            place = spec.place
            assert place is not None, "filtered above"
            leaves += [*_spec_words(spec), place.offset, place.stride, place.count, 0]
        words += [*plain, 1, 1 + row * STORE_BLOCKS, len(here), at, STORE_BYTES - 1]
        words.append(int(argument.kind is ArgumentKind.GLOBAL_BUFFER))
    return words, leaves


def _spec_words(spec: FillSpec) -> list[int]:
    width = next(one.dtype.itemsize for one in SCALAR_TYPES.values() if one.fill_kind is spec.kind)
    rule = _RULES[spec.contents.rule] if spec.contents is not None else 0
    limit = spec.contents.limit if spec.contents is not None else 0
    how = _KINDS.get(spec.kind, _INTEGER) | width << 8 | rule << 16
    return [how, spec.num_scalars, spec.key, limit]
