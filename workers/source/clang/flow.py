"""Follow values that depend on the order in which work-items run.

They are followed through variables, arrays, pointers, and parameters and results of helper
functions. The analysis ignores the order of statements and rather finds too much. Owns how values
flow; ``influence.py`` decides what follows.
"""

from __future__ import annotations

from enum import IntFlag

from workers.source.builtin_groups import ATOMIC_PREFIXES, COPY_PREFIX, VECTOR_MEMORY_PREFIXES
from workers.source.clang.nodes import (
    Function,
    Node,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    reachable,
    walk,
)
from workers.source.clang.updates import (
    ASSIGNMENTS,
    FENCES,
    GROUP_PREFIXES,
    STEPS,
    Dependent,
    is_dereference,
    is_update,
    space_of,
)

_GLOBAL_FENCE = 2
_LOGICAL = frozenset({"&&", "||"})
_FAR = frozenset({Space.GLOBAL, Space.GENERIC})
_COSTLY = frozenset(
    {
        NodeKind.CALL, NodeKind.SUBSCRIPT, NodeKind.MEMBER, NodeKind.UNARY, NodeKind.BINARY,
        NodeKind.ASSIGN, NodeKind.COMPOUND_ASSIGN, NodeKind.CONDITIONAL,
    }
)  # fmt: skip
"""Kinds of operands that may do work; skipping another operand changes no count."""
_MOST_PASSES = 40
"""Maximum passes over a kernel. A pass follows a value through at least one assignment. After so
many, each branch is taken to depend on all values that have an origin."""
_POINTERS = frozenset({TypeClass.POINTER, TypeClass.ARRAY})


class Origin(IntFlag):
    """On what a value depends: results of global atomic operations, or other work-items' writes."""

    NOTHING = 0
    ATOMIC = 1
    SHARED = 2


class Flow:
    """Values and where they go; with ``update``, only the values of this atomic operation.

    ``branches``, ``indices``: see ``Influence``. ``conditions``: the statements and operators whose
    condition has the origin ``ATOMIC``, each with its function. ``is_address``: an address outside
    private memory has this origin. ``is_complete``: all assignments were followed.
    """

    def __init__(
        self,
        source: ParsedSource,
        kernel: Function,
        update: Node | None = None,
        known: Dependent | None = None,
    ) -> None:
        self._source, self._kernel = source, kernel
        self._update, self._known = update, known or Dependent()
        self._functions = reachable(source, kernel)
        self._parents: dict[str, str] = {}
        self._values: dict[str, Origin] = {}
        """Origins of a variable's own value, if it is a pointer; by the variable's key."""
        self._contents: dict[str, Origin] = {}
        """Origins of objects in memory, and of variables; by the key of their class."""
        self._local: set[str] = set()
        self._written: set[str] = set()
        self._returns: dict[str, Origin] = {}
        self._function = kernel
        self._is_changed = True
        self.branches = self.indices = Origin.NOTHING
        self._appended: set[str] = set()
        self.conditions: list[tuple[Function, Node]] = []
        self.is_address = False
        self._has_global_fence = any(
            _fences_global(node) for one in self._functions for node in walk(one.body)
        )
        self._run()

    def _run(self) -> None:
        for one in self._functions:
            for parameter in one.parameters:
                pointee = parameter.type.pointee
                if pointee is not None and pointee.space is Space.LOCAL:
                    self._local.add(parameter.key)
        for _ in range(_MOST_PASSES):
            if not self._is_changed:
                break
            self._is_changed = False
            self.branches = self.indices = Origin.NOTHING
            self._appended = set()
            self._begin()
            for one in self._functions:
                self._function = one
                self._origin(one.body)
        self.is_complete = not self._is_changed
        if self._is_changed:
            for known in (self._values, self._contents, self._returns):
                for origin in known.values():
                    self.branches |= origin
                    self.indices |= origin

    def appended(self) -> frozenset[int]:
        """Return the positions of the pointer arguments that have such an address."""
        classes = {self._class(key) for key in self._appended}
        return frozenset(
            position
            for position, one in enumerate(self._kernel.parameters)
            if one.type.shape is TypeClass.POINTER and self._class(one.key) in classes
        )

    def may_meet(self, one: Node, other: Node) -> bool:
        """Whether two addresses or places may belong to the same object."""
        classes = {self._class(key) for key in self._roots(one)}
        return any(self._class(key) in classes for key in self._roots(other))

    def _begin(self) -> None:
        """Note what depends on the followed operation without an assignment of its value."""
        self.conditions = []
        for key in self._known.expected:
            self._add(self._contents, self._class(key), Origin.ATOMIC)
        for place in self._known.places.values():
            if place.kind is NodeKind.VARIABLE:
                self._assigned(place, Origin.ATOMIC, None)
            else:
                self._stored(place, Origin.ATOMIC)
        for function in self._known.results:
            self._add(self._returns, f"{function}()", Origin.ATOMIC)

    # -- objects that may be the same ------------------------------------------------------------

    def _class(self, key: str) -> str:
        while key in self._parents:
            key = self._parents[key]
        return key

    def _unite(self, keys: set[str]) -> None:
        classes = sorted({self._class(key) for key in keys})
        for other in classes[1:]:
            self._is_changed = True
            self._parents[other] = classes[0]
            self._add(self._contents, classes[0], self._contents.pop(other, Origin.NOTHING))
            for known in (self._local, self._written):
                if other in known:
                    known.add(classes[0])

    def _add(self, known: dict[str, Origin], key: str, origin: Origin) -> None:
        before = known.get(key, Origin.NOTHING)
        if origin | before != before:
            known[key] = origin | before
            self._is_changed = True

    def _roots(self, node: Node) -> set[str]:
        """Return the keys of the variables that an address or a place may belong to."""
        if node.kind is NodeKind.REFERENCE:
            self._note_local(node)
            return {node.key}
        if node.kind is NodeKind.CALL:
            callee = self._source.functions.get(node.key)
            return {_result_of(callee)} if callee is not None else set()
        if node.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER, NodeKind.ASSIGN}:
            return self._roots(node.children[0]) if node.children else set()
        below = node.children[1:] if node.kind is NodeKind.CONDITIONAL else node.children
        if node.kind is NodeKind.BINARY:
            pointers = [one for one in below if one.type.shape in _POINTERS]
            below = tuple(pointers) or below
        return {key for one in below for key in self._roots(one)}

    # -- values ----------------------------------------------------------------------------------

    def _origin(self, node: Node) -> Origin:
        """Note what an expression or a statement does; return the origins of its value."""
        kind, children = node.kind, node.children
        if kind is NodeKind.REFERENCE:
            return self._named(node)
        if kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} or is_dereference(node):
            return self._loaded(node)
        if kind is NodeKind.CALL:
            return self._call(node)
        if kind in ASSIGNMENTS and len(children) == 2:
            origin = self._origin(children[1])
            if kind is NodeKind.COMPOUND_ASSIGN:
                origin |= self._origin(children[0])
            return self._stored(children[0], origin, children[1])
        if kind is NodeKind.UNARY and node.name in STEPS:
            return self._stored(children[0], self._origin(children[0]))
        is_address = kind is NodeKind.UNARY and node.name == "&"
        return self._address(children[0]) if is_address else self._combined(node)

    def _combined(self, node: Node) -> Origin:
        kind, children = node.kind, node.children
        origins = [self._origin(one) for one in children]
        origin = Origin.NOTHING
        for one in origins:
            origin |= one
        if kind is NodeKind.SIZEOF:
            return Origin.NOTHING
        if kind is NodeKind.VARIABLE and children:
            self._assigned(node, origin, children[0])
        elif kind is NodeKind.RETURN and children:
            key = _result_of(self._function)
            self._add(self._returns, key, origin)
            if children[0].type.shape in _POINTERS:
                self._unite({key, *self._roots(children[0])})
        elif kind in {NodeKind.IF, NodeKind.SWITCH, NodeKind.WHILE} and origins:
            self._decide(node, origins[0])
        elif kind is NodeKind.FOR or kind is NodeKind.DO:
            self._decide(node, origins[1] if len(origins) > 1 else Origin.NOTHING)
        elif kind is NodeKind.CONDITIONAL or (kind is NodeKind.BINARY and node.name in _LOGICAL):
            skipped = [one for child in children[1:] for one in walk(child)]
            is_vector = children[0].type.shape is TypeClass.VECTOR
            if not is_vector and any(one.kind in _COSTLY for one in skipped):
                self._decide(node, origins[0])
        return origin

    def _decide(self, node: Node, origin: Origin) -> None:
        self.branches |= origin
        if origin & Origin.ATOMIC:
            self.conditions.append((self._function, node))

    def _named(self, node: Node) -> Origin:
        if node.type.shape is TypeClass.POINTER:
            return self._values.get(node.key, Origin.NOTHING)
        if node.type.shape is TypeClass.ARRAY:
            return Origin.NOTHING
        shared = Origin.SHARED if node.type.space is Space.LOCAL else Origin.NOTHING
        return self._contents.get(self._class(node.key), Origin.NOTHING) | shared

    def _loaded(self, place: Node) -> Origin:
        address = self._address(place)
        if place.type.shape is TypeClass.ARRAY:
            return address
        return address | self._read(place, place.type.space)

    def _read(self, place: Node, space: Space) -> Origin:
        """Return the origins of the contents at a place."""
        classes = {self._class(key) for key in self._roots(place)}
        origin = Origin.NOTHING
        for one in classes:
            origin |= self._contents.get(one, Origin.NOTHING)
        is_local = space is Space.LOCAL or not classes.isdisjoint(self._local)
        is_rewritten = self._has_global_fence and not classes.isdisjoint(self._written)
        if is_local or (is_rewritten and space in _FAR):
            origin |= Origin.SHARED
        return origin

    def _address(self, place: Node) -> Origin:
        """Return the origins of a place's address; notes them if the place is in global memory."""
        origin = Origin.NOTHING
        if place.kind is NodeKind.SUBSCRIPT or is_dereference(place):
            for child in place.children[:1]:
                origin |= self._inner_address(child)
            for index in place.children[1:]:  # may be a lane of a vector, which is no base
                origin |= self._origin(index)
        elif place.kind is NodeKind.MEMBER:
            for child in place.children[:1]:
                origin |= self._inner_address(child)
        elif place.kind is not NodeKind.REFERENCE:
            origin = self._origin(place)
        self._note_address(place, place.type.space, origin)
        return origin

    def _inner_address(self, base: Node) -> Origin:
        """Return the origins of a base or an index; of a base that is an object, its address."""
        is_object = base.type.shape in {TypeClass.ARRAY, TypeClass.RECORD, TypeClass.VECTOR}
        is_place = base.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER, NodeKind.REFERENCE}
        if is_object and (is_place or is_dereference(base)):
            return self._address(base)
        return self._origin(base)

    def _note_address(self, place: Node, space: Space, origin: Origin) -> None:
        if origin & Origin.ATOMIC and space is not Space.PRIVATE:
            self.is_address = True
        if space in _FAR:
            self.indices |= origin
            if origin & Origin.ATOMIC:
                self._appended |= self._roots(place)

    def _note_local(self, variable: Node) -> None:
        key = self._class(variable.key)
        if variable.type.space is Space.LOCAL and key not in self._local:
            self._local.add(key)
            self._is_changed = True

    # -- assignments -----------------------------------------------------------------------------

    def _stored(self, place: Node, origin: Origin, value: Node | None = None) -> Origin:
        if place.kind is NodeKind.REFERENCE:
            self._assigned(place, origin, value)
            return origin if self._update is None else origin | self._named(place)
        address = self._address(place)
        self._write(place, origin | address)
        if value is not None and value.type.shape in _POINTERS:
            self._unite(self._roots(place) | self._roots(value))
        return origin

    def _assigned(self, variable: Node, origin: Origin, value: Node | None) -> None:
        """Note that a variable gets a value."""
        self._note_local(variable)
        if variable.type.shape is TypeClass.POINTER:
            self._add(self._values, variable.key, origin)
            if value is not None:
                self._unite({variable.key, *self._roots(value)})
        else:
            self._add(self._contents, self._class(variable.key), origin)

    def _write(self, place: Node, origin: Origin) -> None:
        for key in self._roots(place):
            one = self._class(key)
            if one not in self._written:
                self._written.add(one)
                self._is_changed = True
            self._add(self._contents, one, origin)

    # -- calls -----------------------------------------------------------------------------------

    def _call(self, node: Node) -> Origin:
        name, arguments = node.name, node.children
        origins = [self._origin(one) for one in arguments]
        callee = self._source.functions.get(node.key)
        if callee is not None:
            return self._called(callee, arguments, origins)
        origin = Origin.NOTHING
        for one in origins:
            origin |= one
        if name.startswith(ATOMIC_PREFIXES) and arguments:
            return self._atomic(node, origins[0], origin)
        if name.startswith(COPY_PREFIX) and len(arguments) > 2:
            self._decide(node, origins[2])
        for argument, address in zip(arguments, origins, strict=True):
            pointee = argument.type.pointee
            if argument.type.shape not in _POINTERS or name in FENCES:
                continue
            space = space_of(argument)
            is_vector = name.startswith(VECTOR_MEMORY_PREFIXES)
            # The offset of a vector is the argument before the pointer.
            self._note_address(argument, space, address | origins[-2] if is_vector else address)
            is_const = pointee is not None and pointee.is_const
            if not is_const and not name.startswith("vload"):
                self._write(argument, origin)
            origin |= self._read(argument, space)
        return origin | (Origin.SHARED if name.startswith(GROUP_PREFIXES) else Origin.NOTHING)

    def _called(
        self, callee: Function, arguments: tuple[Node, ...], origins: list[Origin]
    ) -> Origin:
        for parameter, argument, origin in zip(callee.parameters, arguments, origins, strict=False):
            if parameter.type.shape is TypeClass.POINTER:
                self._add(self._values, parameter.key, origin)
                self._unite({parameter.key, *self._roots(argument)})
            else:
                self._add(self._contents, self._class(parameter.key), origin)
        return self._returns.get(_result_of(callee), Origin.NOTHING)

    def _atomic(self, node: Node, address: Origin, origin: Origin) -> Origin:
        """Note an atomic operation; ``origin``: the origins of all its arguments."""
        target = node.children[0]
        space = space_of(target)
        self._note_address(target, space, address)
        classes = {self._class(key) for key in self._roots(target)}
        is_local = space is Space.LOCAL or not classes.isdisjoint(self._local)
        result = Origin.SHARED if is_local else Origin.ATOMIC
        is_other = self._update is not None and self._update is not node
        is_exempt = self._update is None and is_update(node, self._kernel)
        if not is_local and (is_other or is_exempt):
            result = Origin.NOTHING
        # A later load of the object, too, depends on the operations of other work-items.
        kept = result if self._update is None and not is_local else Origin.NOTHING
        self._write(target, Origin.NOTHING if self._update is node else origin | kept)
        for argument in node.children[1:]:
            if argument.type.shape in _POINTERS:
                self._write(argument, origin | result)
        return address | result


def _result_of(function: Function) -> str:
    return f"{function.key}()"


def _fences_global(node: Node) -> bool:
    """Whether a call makes writes to global memory visible to the work-group."""
    if node.kind is not NodeKind.CALL or node.name not in FENCES:
        return False
    flags = [one.value for child in node.children for one in walk(child) if one.value is not None]
    return any(flag & _GLOBAL_FENCE for flag in flags)
