"""Find what a kernel decides by values that depend on the order in which work-items run.

Two kinds of values are followed: results of atomic operations in global memory, and memory that
other work-items of the group may have written before a barrier. Owns the findings; the memory
analysis and the work counts decide what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from workers.source.clang.cursor import deep_recursion
from workers.source.clang.flow import Flow, Origin
from workers.source.clang.nodes import Function, Node, ParsedSource
from workers.source.clang.updates import Dependent, Followed, decides_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """What the values with an ``Origin`` decide.

    ``branches``: the origins of all conditions that change what a work-item executes (``if``,
    ``switch``, loops, and operators that may skip an operand). ``indices``: the origins of all
    addresses in global memory. ``appended``: positions of the kernel's pointer arguments that are
    accessed at an address with the origin ``ATOMIC``.
    """

    branches: Origin = Origin.NOTHING
    indices: Origin = Origin.NOTHING
    appended: frozenset[int] = frozenset()


def influence_of(source: ParsedSource, kernel: Function) -> Influence:
    """Return what a kernel and its helpers decide by values of other work-items.

    The result of an atomic operation in global memory has the origin ``ATOMIC``, and so has a later
    load of the object. Some kinds of operations are followed apart (``updates.py``), because a
    work-item decides by them about its own update, and few work-items update one address at the
    same time: a compare-and-exchange whose expected value is a variable, an operation that adds 0
    (it only reads), a minimum or maximum, and an exchange within an exchange, which adds floats. If
    more than the update depends on one of them that does not only read, a branch has this origin.
    """
    with deep_recursion():
        flow = Flow(source, kernel)
        branches = flow.branches
        if not branches & Origin.ATOMIC and decides_work(source, kernel, _follower(source, kernel)):
            branches |= Origin.ATOMIC
        return Influence(branches=branches, indices=flow.indices, appended=flow.appended())


def _follower(source: ParsedSource, kernel: Function) -> Callable[[Node, Dependent], Followed]:
    def follow(update: Node, known: Dependent) -> Followed:
        flow = Flow(source, kernel, update, known)
        return Followed(
            conditions=flow.conditions,
            is_address=flow.is_address,
            is_target=partial(flow.may_meet, update.children[0]),
            is_complete=flow.is_complete,
        )

    return follow
