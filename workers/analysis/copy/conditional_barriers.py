"""Barriers inside conditions, of which PoCL can compile only a few.

PoCL compiles the code behind a barrier once for each way by which work-items may have come there,
so each barrier inside a condition makes a compilation some three times as long: 0.1 s with five of
them, 3 s with eight, and over a minute with ten. Reductions often have ten: one for each power of
two up to the local size.
"""

from __future__ import annotations

from typing import Any

from workers.analysis.copy.cursors import (
    BARRIERS,
    CALL,
    COMPOUND,
    IF,
    JUMPS,
    PARAMETER,
    REFERENCE,
    RETURN,
    SWITCH,
    VARIABLE,
    children_of,
    statement_end,
    text_range,
)
from workers.analysis.copy.edits import Edits

MOST_CONDITIONAL = 6
"""Maximum barriers inside conditions with which a copy keeps its barriers. It compiles in a second."""
_MOST_UNMOVED = 4
"""Maximum barriers inside conditions of a kernel in which none is moved."""


def move_barriers(edits: Edits, kernel_body: Any, helper_bodies: list[Any]) -> int:
    """Move barriers from the ends of conditional blocks to behind these blocks, if there are many.

    ``if (c) { a; barrier(x); }`` becomes ``if (c) { a; } barrier(x);``. All work-items of a group
    must come to the same decision on ``c``, so at most they wait once more. Only conditions that
    every work-item reaches are changed: statements of the kernel's own body, if the kernel has no
    ``return`` and no ``goto``.

    Args:
        edits: receives the changes.
        kernel_body: the compound statement of the kernel.
        helper_bodies: the compound statements of the functions that the kernel calls.

    Returns:
        The number of barriers that remain inside conditions.
    """
    number = sum(map(_num_conditional, [kernel_body, *helper_bodies]))
    if number <= _MOST_UNMOVED or _may_leave(kernel_body):
        return number
    for statement in children_of(kernel_body):
        if statement._kind_id != IF:
            continue
        begin, end = text_range(statement)
        end = statement_end(edits.raw, statement, end)
        for branch in children_of(statement)[1:]:
            last = (children_of(branch) or [branch])[-1] if branch._kind_id == COMPOUND else branch
            if not _is_plain_barrier(last):
                continue
            start, stop = text_range(last)
            edits.replace(start, stop, "")
            edits.wrap(begin, end, "", f" {edits.raw[start:stop].decode()};")
            number -= 1
    return number


def _num_conditional(body: Any) -> int:
    """Return the number of barriers below a condition."""
    number = 0
    stack = [(body, False)]
    while stack:
        one, is_conditional = stack.pop()
        number += is_conditional and one._kind_id == CALL and one.spelling in BARRIERS
        is_conditional = is_conditional or one._kind_id in {IF, SWITCH}
        stack += [(child, is_conditional) for child in children_of(one)]
    return number


def _may_leave(body: Any) -> bool:
    """Whether a work-item may not reach a later statement of the kernel's body."""
    stack = [body]
    while stack:
        one = stack.pop()
        if one._kind_id in {RETURN, *JUMPS}:
            return True
        stack += children_of(one)
    return False


def _is_plain_barrier(statement: Any) -> bool:
    """Whether a statement is a call of a barrier whose arguments contain no variable."""
    if statement._kind_id != CALL or statement.spelling not in BARRIERS:
        return False
    stack = list(statement.get_arguments())
    while stack:
        one = stack.pop()
        if one._kind_id == CALL or _names_variable(one):
            return False
        stack += children_of(one)
    return True


def _names_variable(cursor: Any) -> bool:
    target = cursor.referenced if cursor._kind_id == REFERENCE else None
    return target is not None and target._kind_id in {VARIABLE, PARAMETER}
