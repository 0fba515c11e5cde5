"""Rewrite the calls in one file.

A call of a function that the file defines gets ``CONTEXT`` (the work-item's record of its accesses)
as its first argument. A call of a built-in function gets real addresses in place of pointers.
``builtins.py`` has stand-ins, which replace some built-in functions; ``walk.py`` walks the code and
finds the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.analysis.copy.builtins import stand_in
from workers.analysis.copy.cursors import UNEXPOSED, children_of, named_place, text_range
from workers.analysis.copy.rewriter import CONTEXT, Rewriter, opencl_name
from workers.source.clang.nodes import Space, TypeClass, TypeFacts

_POINTERS = frozenset({TypeClass.POINTER, TypeClass.ARRAY})
"""Kinds of types that are pointers: a parameter that is written as an array is a pointer, too."""


class CallRewriter:
    """Edits calls; the caller walks their arguments.

    Args:
        rewriter: the rewriter of the file.
        is_defined: whether the file defines a function of this name.
    """

    def __init__(self, rewriter: Rewriter, is_defined: Callable[[str], bool]) -> None:
        self._rewriter = rewriter
        self._edits = rewriter.edits
        self._sites = rewriter.sites
        self._is_defined = is_defined

    def rewrite(self, cursor: Any) -> list[tuple[Any, bool]]:
        """Edit one call.

        Returns:
            The nodes below the call that the caller must walk. Each node comes with True if a
            built-in function accesses it as a part of a variable, else with False.
        """
        name = cursor.spelling
        arguments = list(cursor.get_arguments())
        if not name:
            raise self._rewriter.unresolved(cursor, "a call through a pointer")
        if name == "prefetch":
            start, end = text_range(cursor)
            self._edits.replace(start, end, "((void)0)")
            return []
        if self._is_defined(name):
            self._pass_context(cursor, arguments)
        elif name == "printf":
            arguments = self._without_output(cursor, arguments)
        elif not self._stand_in(cursor, name, arguments):
            return [self._touched(one) for one in arguments]
        return [(one, False) for one in arguments]

    def _without_output(self, cursor: Any, arguments: list[Any]) -> list[Any]:
        """Replace ``printf`` by its arguments: with ``%s`` it would read memory without a hook."""
        start, end = text_range(cursor)
        if len(arguments) < 2:
            self._edits.replace(start, end, "0")
            return []
        self._edits.replace(start, text_range(arguments[1])[0], "((void)0, ")
        self._edits.insert_last(end - 1, ", 0")
        return arguments[1:]

    def _touched(self, argument: Any) -> tuple[Any, bool]:
        """Pass a built-in a real address; a part of a variable already has a real address."""
        kind = self._rewriter.type(argument)
        if kind.shape not in _POINTERS or kind.pointee is None:
            return argument, False
        place = named_place(argument)
        if place is not None:
            return place, True
        pointer, pointee = in_its_own_space(self._rewriter.type, argument, kind.pointee)
        self._rewriter.pointer(pointer, pointee)
        return argument, False

    def _pass_context(self, cursor: Any, arguments: list[Any]) -> None:
        if arguments:
            self._edits.insert(text_range(arguments[0])[0], f"{CONTEXT}, ")
        else:
            self._edits.insert(text_range(cursor)[1] - 1, CONTEXT)

    def _stand_in(self, cursor: Any, name: str, arguments: list[Any]) -> bool:
        types = [self._rewriter.type(one) for one in arguments]
        kinds = [
            in_its_own_space(self._rewriter.type, argument, kind.pointee)[1]
            for argument, kind in zip(arguments, types, strict=True)
            if kind.shape in _POINTERS and kind.pointee is not None
        ]
        if not kinds or any(one.space is Space.GENERIC for one in kinds):
            return False
        value_type = opencl_name(types[0])
        spellings = tuple(opencl_name(one) for one in kinds)
        key = (name, spellings, value_type if name.startswith("vstore") else "")
        function = self._sites.stand_ins.get(key)
        if function is None:
            function = f"lp_{name}_{len(self._sites.stand_ins)}"
            definition = stand_in(name, function, spellings, value_type)
            if definition is None:
                return False
            self._sites.stand_ins[key] = function
            self._sites.definitions.append(definition)
        site = self._rewriter.site(cursor)
        start = text_range(cursor)[0]
        self._edits.replace(start, text_range(arguments[0])[0], f"{function}({CONTEXT}, {site}, ")
        return True


def in_its_own_space(
    type_of: Callable[[Any], TypeFacts], argument: Any, pointee: TypeFacts
) -> tuple[Any, TypeFacts]:
    """Return the argument and its pointee below a conversion to the generic address space."""
    while pointee.space is Space.GENERIC and argument._kind_id == UNEXPOSED:
        below = children_of(argument)
        inner = type_of(below[0]).pointee if len(below) == 1 else None
        if inner is None:
            break
        argument, pointee = below[0], inner
    return argument, pointee
