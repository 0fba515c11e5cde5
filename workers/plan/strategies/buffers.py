"""The buffers of one launch, from a memory analysis: their elements, and the indices in them.

Owns the order in which the sizes are computed. Buffers whose extent has a form come first. Then row
offsets (``PREFIX``) decide the sizes of the buffers that they index. The simple rule gives the
elements of all remaining buffers. Last, every buffer of indices gets the largest limit that keeps
all accesses through it inside the indexed buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmperf_common.analysis import (
    VALUE_LIMIT,
    Analysis,
    Contents,
    ContentsRule,
    Extent,
    IndexRole,
    IndexTarget,
    launch_sizes,
)
from llmperf_common.launch import is_integer_scalar
from llmperf_common.records import Argument, ArgumentKind, LaunchArgument, Signature
from workers.plan.inputs import INTEGER_LIMIT, MAX_CONTENTS_LIMIT
from workers.plan.ndranges import Shape
from workers.plan.strategies.scalars import (
    FLOATS,
    Number,
    integer_scalars,
    largest_value,
    scalar_arguments,
    simple_value,
)

ELEMENTS_PER_ROW = 16
"""Elements of a row, for buffers of row offsets: about as many as in real sparse matrices."""
_FILLED = frozenset({ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER})
_ROW_SHARE = 4
"""Rows get shorter if all rows together would take more than 1/4 of the bytes of a launch."""


def simple_elements(argument: Argument, global_size: Shape, local_size: Shape) -> int:
    """Return the number of elements that the simple rule gives a pointer argument.

    The number is g**dims, where g is the longest side of the global size. A ``__local`` pointer
    gets one element per work-item of the group.
    """
    if argument.kind is ArgumentKind.LOCAL_BUFFER:
        return math.prod(local_size)
    longest: int = max(global_size)
    elements: int = longest ** len(global_size)
    return elements


def simple_argument(
    argument: Argument, global_size: Shape, local_size: Shape, given: Number | None
) -> LaunchArgument:
    """Return what the simple rule passes for one argument, or the user's ``given`` value."""
    if argument.kind.is_buffer:
        elements = simple_elements(argument, global_size, local_size)
        elements = elements if given is None else int(given)
        return LaunchArgument(position=argument.position, kind=argument.kind, elements=elements)
    value = simple_value(argument, global_size) if given is None else given
    return LaunchArgument(position=argument.position, kind=argument.kind, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysedBuffers:
    """The rule for the pointer arguments of one kernel.

    ``max_launch_bytes``: limit of all buffers of a launch together. ``given``: the elements of
    buffers and the values of scalars that the user has fixed, by position. The sizes of all other
    buffers follow from them.
    """

    signature: Signature
    analysis: Analysis
    max_launch_bytes: int
    given: Mapping[int, Number] = field(default_factory=dict)

    def arguments(
        self,
        global_size: Shape,
        local_size: Shape,
        values: Mapping[int, Number],
        contents: Contents | None = None,
    ) -> tuple[LaunchArgument, ...]:
        """Return all arguments of one launch.

        Args:
            global_size: work-items of the launch, by dimension.
            local_size: work-items of a work-group, by dimension.
            values: values of the scalars, by position.
            contents: contents of the buffers whose values are not known to steer the kernel; None:
                the usual contents.
        """
        scalars = {one.name: values[one.position] for one in integer_scalars(self.signature)}
        sizes = launch_sizes(global_size, local_size, scalars)
        elements = self._elements(sizes, global_size, local_size)
        limits = self._limits(sizes, elements)
        passed = {
            one.position: LaunchArgument(
                position=one.position, kind=one.kind, value=values[one.position]
            )
            for one in scalar_arguments(self.signature)
        }
        return tuple(
            passed[one.position]
            if one.position in passed
            else LaunchArgument(
                position=one.position,
                kind=one.kind,
                elements=elements[one.position],
                contents=limits.get(one.position) or _if_known(contents, one),
            )
            for one in self.signature.arguments
        )

    def _elements(
        self, sizes: Mapping[str, int], global_size: Shape, local_size: Shape
    ) -> dict[int, int]:
        """Return the number of elements of every pointer argument, by position; at least 1 each."""
        pointers = {one.position: one for one in self.signature.arguments if one.kind.is_buffer}
        fixed = {at: int(self.given[at]) for at in pointers if at in self.given}
        found = dict(fixed)
        for position, argument in pointers.items():
            if position in fixed:
                continue
            extent = self.analysis.extent(position)
            reach = extent_elements(extent, sizes)
            if extent is not None and reach is not None:
                # A form that is not validated may give too few elements. So the buffer gets at
                # least as many as the simple rule gives.
                plain = simple_elements(argument, global_size, local_size)
                found[position] = max(1, reach, 0 if extent.validated else plain)
        with_form = frozenset(found)
        row_offsets = {
            target.position: role.position
            for role in self.analysis.index_roles
            if role.rule is ContentsRule.PREFIX and role.position in pointers
            for target in role.targets
        }

        def size(position: int, waiting: frozenset[int]) -> int:
            if position not in found:
                owner = row_offsets.get(position)
                argument = pointers[position]
                if owner is None or owner in waiting:  # unknown or a cycle: use the simple rule
                    found[position] = simple_elements(argument, global_size, local_size)
                else:
                    rows = size(owner, waiting | {position})
                    found[position] = self._row_elements(argument, rows)
            return found[position]

        for position in pointers:
            size(position, frozenset({position}))
        for role in self.analysis.index_roles:
            for target in role.targets:
                if target.position in found and target.position not in fixed:
                    values = 1 if target.position in with_form else INTEGER_LIMIT
                    reach = _reach(target, sizes, values) or 1
                    found[target.position] = max(found[target.position], reach)
        return found

    def _row_elements(self, argument: Argument, rows: int) -> int:
        """Return the elements that ``rows`` row offsets index; fewer per row if memory is short."""
        most_elements = self.max_launch_bytes // _ROW_SHARE // max(1, argument.element_bytes)
        return max(rows, min(ELEMENTS_PER_ROW * rows, most_elements))

    def _limits(self, sizes: Mapping[str, int], elements: Mapping[int, int]) -> dict[int, Contents]:
        """Return the contents of the buffers whose values steer the kernel, by position."""
        limits: dict[int, Contents] = {}
        for argument in self.signature.arguments:
            role = self.analysis.index_role(argument.position)
            if role is not None and can_hold_indices(argument):
                limit = _largest_limit(role, argument, sizes, elements)
                limits[argument.position] = Contents(rule=role.rule, limit=limit)
        return limits


def can_hold_indices(argument: Argument) -> bool:
    """Return whether the content rules apply: a global or constant buffer that holds integers."""
    return argument.kind in _FILLED and any(
        is_integer_scalar(one) for one in _scalar_types(argument)
    )


def _if_known(contents: Contents | None, argument: Argument) -> Contents | None:
    """Return the rule if it applies to this buffer: ``SIGNED`` needs floating-point values."""
    if contents is None or argument.kind not in _FILLED:
        return None
    types = _scalar_types(argument)
    has_floats = any(one in FLOATS for one in types)
    has_whole = contents.rule is ContentsRule.FLAGS and any(map(is_integer_scalar, types))
    return contents if has_floats or has_whole else None


def extent_elements(extent: Extent | None, sizes: Mapping[str, int]) -> int | None:
    """Return the elements that an extent's form gives; None if this launch cannot evaluate it."""
    if extent is None:
        return None
    try:
        return extent.elements(sizes)
    except KeyError:  # a factor that is no size of this launch, such as a vector's lane
        return None


def _largest_limit(
    role: IndexRole, argument: Argument, sizes: Mapping[str, int], elements: Mapping[int, int]
) -> int:
    """Return the largest limit of indices with which accesses stay inside the indexed buffers."""
    most = min(
        MAX_CONTENTS_LIMIT,
        *(largest_value(one) + 1 for one in _scalar_types(argument) if is_integer_scalar(one)),
    )
    targets = [one for one in role.targets if one.position in elements]
    if not targets:  # the values bound a loop and index no buffer
        rows = elements[argument.position]
        few = INTEGER_LIMIT if role.rule is ContentsRule.BOUNDED else ELEMENTS_PER_ROW * rows
        return max(1, min(few, most))

    return min(_largest_within(one, sizes, elements[one.position], most) for one in targets)


def _largest_within(
    target: IndexTarget, sizes: Mapping[str, int], num_elements: int, most: int
) -> int:
    """Return the largest limit in [1, most] with which accesses stay inside one indexed buffer."""
    try:
        powers = target.form.powers_of(VALUE_LIMIT, sizes)
    except KeyError:  # a factor that is no size of this launch
        return most
    if len(powers) == 2 and powers[1] > 0:  # nearly all forms are linear: no search is needed
        return max(1, min(most, (num_elements - powers[0]) // powers[1]))

    def fits(limit: int) -> bool:
        total = 0
        for one in reversed(powers):
            total = total * limit + one
        return total <= num_elements

    return largest_that(fits, most)


def largest_that(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number in [1, most] for which the monotone ``holds`` is true; at least 1.

    >>> largest_that(lambda number: number * number <= 50, 1000)
    7
    """
    if holds(most):
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _reach(target: IndexTarget, sizes: Mapping[str, int], limit: int) -> int | None:
    try:
        return target.form.value({**sizes, VALUE_LIMIT: limit})
    except KeyError:
        return None


def _scalar_types(argument: Argument) -> tuple[str, ...]:
    if argument.leaves:
        return tuple(leaf.scalar_type for leaf in argument.leaves)
    return (argument.scalar_type,)
