"""Launches as numeric tokens: each number is one token, and the token's id encodes its slot.

Owns the table of slots and the conversion of launches; the id of a token is -1 - slot, and its
number is stored beside it (``trainer.data.tokens``). A model stores the names of its slots beside
its weights. A later release may append slots; tokens of slots that a model does not have are left
out.

The tokens of a launch, in their order:

1. for each dimension of the NDRange the global size, the local size and the number of work-groups;
2. for each argument its elements or its value, then, for a buffer whose integers steer the kernel,
   the exclusive upper limit of these integers;
3. for an NDRange of more than one dimension the work-items of a work-group and all work-groups;
4. all work-items. This token is always there and always last, because the model's state is
   read at this token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.interface import Codes, Floats
from trainer.prompt.launch_numbers import LaunchNumbers
from trainer.prompt.suffixes import Suffixes, starts

MAX_ARGUMENTS = 64
"""Number of argument positions with a slot; later arguments get no token. Collected kernels have
at most 37 arguments."""

SLOTS: tuple[str, ...] = (
    *(f"global_size_{axis}" for axis in range(3)),
    *(f"local_size_{axis}" for axis in range(3)),
    *(f"num_groups_{axis}" for axis in range(3)),
    "work_group_items",
    "work_groups",
    "work_items",
    *(f"argument_{position}" for position in range(MAX_ARGUMENTS)),
    *(f"argument_limit_{position}" for position in range(MAX_ARGUMENTS)),
)
"""Names of the slots. Sizes are in work-items or work-groups. ``argument_*``: elements of a buffer
or value of a scalar; ``argument_limit_*``: exclusive upper limit of a buffer's integers."""

NUM_SLOTS = len(SLOTS)

_ITEMS_SLOT = SLOTS.index("work_items")
_TOTAL_SLOTS = (SLOTS.index("work_group_items"), SLOTS.index("work_groups"))
_FIRST_ARGUMENT = SLOTS.index("argument_0")
_FIRST_LIMIT = SLOTS.index("argument_limit_0")


def most_tokens(num_arguments: int) -> int:
    """Return the largest number of numeric tokens of a launch with ``num_arguments`` arguments."""
    return 3 * 3 + 3 + 2 * min(num_arguments, MAX_ARGUMENTS)


def numeric_suffixes(numbers: LaunchNumbers, slots: Sequence[str] = SLOTS) -> Suffixes:
    """Return the numeric tokens of n launches.

    Args:
        numbers: sizes and arguments of the launches.
        slots: names of the model's slots; tokens of other slots are left out.
    """
    num = len(numbers)
    rows, keys, kinds, values = [], [], [], []

    def add(row: Codes, key: Codes | int, slot: Codes | int, value: Floats) -> None:
        rows.append(row)
        keys.append(np.broadcast_to(np.asarray(key, dtype=np.int64), row.shape))
        kinds.append(np.broadcast_to(np.asarray(slot, dtype=np.int64), row.shape))
        values.append(value)

    for axis in range(3):
        row = np.flatnonzero(numbers.dims > axis)
        for order, size in enumerate((numbers.global_size, numbers.local_size, numbers.num_groups)):
            add(row, 3 * axis + order, 3 * order + axis, size[row, axis])
    launch = np.repeat(np.arange(num), np.diff(numbers.argument_start))
    first = 9 + 2 * numbers.position
    inside = numbers.position < MAX_ARGUMENTS
    limited = inside & ~np.isnan(numbers.limit)
    at = numbers.position
    add(launch[inside], first[inside], _FIRST_ARGUMENT + at[inside], numbers.amount[inside])
    add(launch[limited], first[limited] + 1, _FIRST_LIMIT + at[limited], numbers.limit[limited])
    end = 9 + 2 * MAX_ARGUMENTS
    several = np.flatnonzero(numbers.dims > 1)
    totals = (numbers.local_size.prod(axis=1), numbers.num_groups.prod(axis=1))
    for order, (slot, total) in enumerate(zip(_TOTAL_SLOTS, totals, strict=True)):
        add(several, end + order, slot, total[several])
    add(np.arange(num), end + len(totals), _ITEMS_SLOT, numbers.global_size.prod(axis=1))
    return _in_order(
        num,
        row=np.concatenate(rows),
        key=np.concatenate(keys),
        slot=np.concatenate(kinds),
        value=np.concatenate(values),
        slots=slots,
    )


def _in_order(
    num: int, *, row: Codes, key: Codes, slot: Codes, value: Floats, slots: Sequence[str]
) -> Suffixes:
    """Sort tokens by launch, then by ``key``; map slots of ``SLOTS`` to those of ``slots``."""
    known = {name: number for number, name in enumerate(slots)}
    number = np.array([known.get(name, -1) for name in SLOTS], dtype=np.int32)[slot]
    width = 9 + 2 * MAX_ARGUMENTS + 3
    order = np.argsort(row * width + key, kind="stable")
    order = order[number[order] >= 0]
    counts = np.bincount(row[order], minlength=num)
    return Suffixes(
        ids=(-1 - number[order]).astype(np.int32),
        values=value[order].astype(np.float64),
        start=starts(counts),
    )
