"""Turn libclang's types into ``TypeFacts``: shape, scalar, lanes, bytes, address space.

``clang/cursor.py`` and the modules that make copies (``workers/analysis/copy``) use ``TypeReader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from clang import cindex

from llmperf_common.records import Leaf
from workers.source.clang.nodes import Space, TypeClass, TypeFacts

NO_TYPE = TypeFacts(
    spelling="",
    shape=TypeClass.OTHER,
    scalar="",
    num_scalars=0,
    size_bytes=0,
    space=Space.PRIVATE,
    is_const=False,
)

_SCALARS = {
    3: "bool", 4: "char", 5: "uchar", 8: "ushort", 9: "uint", 10: "ulong", 11: "ulong", 13: "char",
    14: "char", 16: "short", 17: "int", 18: "long", 19: "long", 21: "float", 22: "double",
    23: "double", 31: "half", 32: "half",
}  # fmt: skip
SCALAR_BYTES = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4,
    "float": 4, "long": 8, "ulong": 8, "double": 8,
}  # fmt: skip
_VOID, _POINTER, _RECORD, _ENUM, _EXT_VECTOR, _ATOMIC, _PIPE = 2, 101, 105, 106, 176, 177, 120
_VECTOR, _BLOCK_POINTER = 113, 102
_ARRAYS = frozenset({112, 114, 115, 116})
_FUNCTIONS = frozenset({110, 111})
_IMAGES = range(121, 157)
_SAMPLER = 157
_SPACES = {
    0: Space.PRIVATE,
    1: Space.GLOBAL,
    2: Space.LOCAL,
    3: Space.CONSTANT,
    4: Space.PRIVATE,
    5: Space.GENERIC,
    6: Space.GLOBAL,
    7: Space.GLOBAL,
}
_SIZED = frozenset(
    {
        TypeClass.SCALAR,
        TypeClass.VECTOR,
        TypeClass.POINTER,
        TypeClass.ARRAY,
        TypeClass.RECORD,
    }
)
_MAX_DEPTH = 16
MAX_LEAVES = 64
"""Maximum number of members of a structure that can be filled; each is filled separately."""
_MAX_MEMBERS = 10_000
"""Maximum members of a structure whose layout is read, including the members of its members. For
each offset libclang visits all of them, which takes about 50 us for 10,000 members."""
_UNION_DECLARATION = 3


class _UnknownLayoutError(Exception):
    """The layout of a structure does not allow filling it member by member."""


_SPACE_WORDS = {
    "__global": Space.GLOBAL,
    "__constant": Space.CONSTANT,
    "__local": Space.LOCAL,
}


def as_parameter(kind: TypeFacts) -> TypeFacts:
    """Return a parameter's type; an array such as ``float a[8]`` is a pointer (C99 6.7.5.3)."""
    if kind.shape is not TypeClass.ARRAY or kind.pointee is None:
        return kind
    # In libclang, only the spelling of such an array has the address space.
    words = kind.spelling.split()
    space = next((_SPACE_WORDS[one] for one in words if one in _SPACE_WORDS), kind.pointee.space)
    pointee = replace(kind.pointee, space=space, is_const=kind.pointee.is_const or "const" in words)
    if pointee.shape is not TypeClass.ARRAY:
        pointee = replace(pointee, spelling=kind.spelling.partition("[")[0].strip())
    return replace(
        kind,
        shape=TypeClass.POINTER,
        pointee=pointee,
        space=Space.PRIVATE,
        is_const=False,
        has_pointer_leaf=True,
        leaves=(),
    )


_Key = tuple[str, str, int]
"""Key of the caches: a type as written, its canonical type, and the offset at which its structure
is declared (-1 for other types), because two blocks may declare different structures of one name.
"""
_DERIVED = frozenset({_POINTER, _BLOCK_POINTER, *_ARRAYS})


class TypeReader:
    """Reads the types of one translation unit and caches them."""

    def __init__(self) -> None:
        self._known: dict[_Key, TypeFacts] = {}
        self._flat_known: dict[_Key, tuple[Leaf, ...] | None] = {}
        self._num_members: dict[_Key, int] = {}

    def read(self, kind: Any, depth: int = 0) -> TypeFacts:
        """Return the facts of one libclang type; ``NO_TYPE`` below 16 levels of nesting."""
        if kind._kind_id == 0 or depth > _MAX_DEPTH:
            return NO_TYPE
        canonical = kind.get_canonical()
        spelling = kind.spelling
        key = (spelling, canonical.spelling, _declared_at(canonical))
        facts = self._known.get(key)
        if facts is None:
            facts = self._facts(kind, canonical, spelling, depth)
            self._known[key] = facts
        return facts

    def _facts(self, written: Any, kind: Any, spelling: str, depth: int) -> TypeFacts:
        number = kind._kind_id
        shape, scalar, num_scalars = TypeClass.OTHER, "", 0
        pointee = None
        pointer_leaf = False
        if number in _SCALARS or number == _ENUM:
            shape, scalar, num_scalars = TypeClass.SCALAR, _SCALARS.get(number, "int"), 1
        elif number in {_EXT_VECTOR, _VECTOR}:
            element = self.read(kind.element_type, depth + 1)
            shape, scalar, num_scalars = TypeClass.VECTOR, element.scalar, kind.element_count
        elif number in {_POINTER, _BLOCK_POINTER}:
            shape = TypeClass.POINTER
            # Only the type as written has the pointee's typedef, unless it is itself a typedef.
            pointee = self.read(written.get_pointee(), depth + 1)
            if pointee is NO_TYPE:
                pointee = self.read(kind.get_pointee(), depth + 1)
            pointer_leaf = True
        elif number in _ARRAYS:
            element = self.read(kind.element_type, depth + 1)
            shape, scalar = TypeClass.ARRAY, element.scalar
            pointee, pointer_leaf = element, element.has_pointer_leaf
        elif number == _RECORD:
            shape = TypeClass.RECORD
            scalar, pointer_leaf = self._leaves(kind, depth)
        elif number == _ATOMIC:
            return self._atomic(kind, spelling, depth)
        else:
            shape = _other_shape(number)
        # libclang 18 aborts (llvm_unreachable) when asked for the size of a placeholder type, such
        # as that of a reference to a __builtin function. Ask only types that have a size.
        size = max(0, kind.get_size()) if shape in _SIZED else 0
        if not num_scalars and scalar:
            num_scalars = size // SCALAR_BYTES[scalar]
        leaves: tuple[Leaf, ...] = ()
        if shape in {TypeClass.RECORD, TypeClass.ARRAY} and not scalar and not pointer_leaf:
            leaves = self._members(kind, size, depth)
        space = _space(kind)
        if number in _ARRAYS and pointee is not None and space is Space.PRIVATE:
            space = pointee.space
        return TypeFacts(
            spelling=spelling,
            shape=shape,
            scalar=scalar,
            num_scalars=num_scalars,
            size_bytes=size,
            space=space,
            is_const=kind.is_const_qualified(),
            pointee=pointee,
            has_pointer_leaf=pointer_leaf,
            leaves=leaves,
        )

    def _members(self, kind: Any, size: int, depth: int) -> tuple[Leaf, ...]:
        """Return the scalars of a type in memory order; () if LLMPerf cannot fill such a layout."""
        try:
            found = self._flat(kind, depth)
        except _UnknownLayoutError:
            return ()
        for leaf in found:
            width = SCALAR_BYTES[leaf.scalar_type]
            if leaf.offset_bytes % width or size % width:
                return ()  # packed: a device may be unable to write unaligned scalars
        return found

    def _flat(self, kind: Any, depth: int) -> tuple[Leaf, ...]:
        """Return the leaves of one type, neighbours of the same scalar type merged.

        Each type is read only once, because a structure nested n times can have 8**n leaves.

        Raises:
            _UnknownLayoutError: Members overlap, are bit fields or are of no scalar type, or there
                are more than ``MAX_LEAVES``.
        """
        canonical = kind.get_canonical()
        key = (kind.spelling, canonical.spelling, _declared_at(canonical))
        if key not in self._flat_known:
            self._flat_known[key] = None  # stays None if a member raises an error
            merged: list[Leaf] = []
            with suppress(_UnknownLayoutError):
                for leaf in self._parts(kind, depth):
                    _append(merged, leaf)
                self._flat_known[key] = tuple(merged)
        found = self._flat_known[key]
        if found is None:
            raise _UnknownLayoutError
        return found

    def _members_of(self, kind: Any, depth: int) -> int:
        """Return the number of members of a type, including the members of its members."""
        canonical = kind.get_canonical()
        if canonical._kind_id != _RECORD:
            return 1
        key = (kind.spelling, canonical.spelling, _declared_at(canonical))
        if key not in self._num_members:
            found = _MAX_MEMBERS + 1
            if depth <= _MAX_DEPTH:
                found = sum(self._members_of(one.type, depth + 1) for one in canonical.get_fields())
            self._num_members[key] = found
        return self._num_members[key]

    def _parts(self, kind: Any, depth: int) -> Iterator[Leaf]:
        """Yield the leaves of one type, those of each member merged."""
        facts = self.read(kind, depth + 1)
        if depth > _MAX_DEPTH or not facts.size_bytes:
            raise _UnknownLayoutError
        if facts.scalar:
            count = facts.size_bytes // SCALAR_BYTES[facts.scalar]
            yield Leaf(offset_bytes=0, scalar_type=facts.scalar, count=count)
            return
        canonical = kind.get_canonical()
        if facts.shape is TypeClass.ARRAY:
            element = canonical.element_type
            stride = max(1, element.get_size())
            if facts.size_bytes // stride > MAX_LEAVES:
                raise _UnknownLayoutError
            leaves = self._flat(element, depth + 1)
            for offset in range(0, facts.size_bytes, stride):
                yield from _shifted(leaves, offset)
        elif facts.shape is TypeClass.RECORD:
            if canonical.get_declaration()._kind_id == _UNION_DECLARATION:
                raise _UnknownLayoutError
            if self._members_of(canonical, depth) > _MAX_MEMBERS:
                raise _UnknownLayoutError
            for field in canonical.get_fields():
                bits = field.get_field_offsetof()
                if bits < 0 or bits % 8 or field.is_bitfield():
                    raise _UnknownLayoutError
                yield from _shifted(self._flat(field.type, depth + 1), bits // 8)
        else:
            raise _UnknownLayoutError

    def _atomic(self, kind: Any, spelling: str, depth: int) -> TypeFacts:
        # The binding lacks clang_Type_getValueType. An atomic type's spelling names its scalar.
        words = {"int", "uint", "long", "ulong", "float", "double"}
        inner = kind.spelling.partition("(")[2].rpartition(")")[0]
        scalar = {"unsigned int": "uint", "unsigned long": "ulong"}.get(inner, inner)
        known = scalar in words
        return TypeFacts(
            spelling=spelling,
            shape=TypeClass.SCALAR if known else TypeClass.OTHER,
            scalar=scalar if known else "",
            num_scalars=1 if known else 0,
            size_bytes=max(0, kind.get_size()),
            space=_space(kind),
            is_const=kind.is_const_qualified(),
        )

    def _leaves(self, kind: Any, depth: int) -> tuple[str, bool]:
        fields = [self.read(field.type, depth + 1) for field in kind.get_fields()]
        scalars = {field.scalar for field in fields}
        one = scalars.pop() if len(scalars) == 1 else ""
        return one, any(field.has_pointer_leaf for field in fields)


def _declared_at(kind: Any) -> int:
    """Return where the structure below pointers and arrays is declared, an offset; -1 if none."""
    while kind._kind_id in _DERIVED:
        is_array = kind._kind_id in _ARRAYS
        kind = kind.element_type if is_array else kind.get_pointee()
    if kind._kind_id not in {_RECORD, _ENUM}:
        return -1
    return int(kind.get_declaration().location.offset)


def _shifted(leaves: tuple[Leaf, ...], num_bytes: int) -> Iterator[Leaf]:
    for leaf in leaves:
        yield replace(leaf, offset_bytes=leaf.offset_bytes + num_bytes)


def _append(merged: list[Leaf], leaf: Leaf) -> None:
    """Add the next leaf in memory order. Raises _UnknownLayoutError if there are too many."""
    last = merged[-1] if merged else None
    if (
        last is not None
        and last.scalar_type == leaf.scalar_type
        and last.offset_bytes + last.count * SCALAR_BYTES[last.scalar_type] == leaf.offset_bytes
    ):
        merged[-1] = replace(last, count=last.count + leaf.count)
    elif len(merged) == MAX_LEAVES:
        raise _UnknownLayoutError
    else:
        merged.append(leaf)


def _other_shape(number: int) -> TypeClass:
    if number in _IMAGES:
        return TypeClass.IMAGE
    if number in _FUNCTIONS:
        return TypeClass.FUNCTION
    shapes = {_VOID: TypeClass.VOID, _SAMPLER: TypeClass.SAMPLER, _PIPE: TypeClass.PIPE}
    return shapes.get(number, TypeClass.OTHER)


def _space(kind: Any) -> Space:
    number = cindex.conf.lib.clang_getAddressSpace(kind)
    return _SPACES.get(number, Space.PRIVATE)
