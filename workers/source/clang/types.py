"""Turn libclang's types into ``TypeFacts``: shape, scalar, lanes, bytes, address space.

``clang/cursor.py`` and the modules that make copies (``workers/analysis/copy``) use ``TypeReader``.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_UNION_DECLARATION = 3


class _UnknownLayoutError(Exception):
    """The layout of a structure does not allow filling it member by member."""


_SPACE_WORDS = {
    "__global": Space.GLOBAL,
    "__constant": Space.CONSTANT,
    "__local": Space.LOCAL,
}


def as_parameter(kind: TypeFacts) -> TypeFacts:
    """Return a parameter's type, ``float a[8]`` as ``float *a`` (C99 6.7.5.3)."""
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


class TypeReader:
    """Reads the types of one translation unit and caches them by spelling."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], TypeFacts] = {}

    def read(self, kind: Any, depth: int = 0) -> TypeFacts:
        """Return the facts of one libclang type; ``NO_TYPE`` below 16 levels of nesting."""
        if kind._kind_id == 0 or depth > _MAX_DEPTH:
            return NO_TYPE
        canonical = kind.get_canonical()
        spelling = kind.spelling
        key = (spelling, canonical.spelling)
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
            found = list(self._flat(kind, 0, depth))
        except _UnknownLayoutError:
            return ()
        merged: list[Leaf] = []
        for leaf in found:
            last = merged[-1] if merged else None
            width = SCALAR_BYTES[leaf.scalar_type]
            if leaf.offset_bytes % width or size % width:
                return ()  # packed: a device may be unable to write unaligned scalars
            if (
                last is not None
                and last.scalar_type == leaf.scalar_type
                and last.offset_bytes + last.count * width == leaf.offset_bytes
            ):
                merged[-1] = replace(last, count=last.count + leaf.count)
            else:
                merged.append(leaf)
        return tuple(merged) if len(merged) <= MAX_LEAVES else ()

    def _flat(self, kind: Any, start: int, depth: int) -> Iterator[Leaf]:
        """Yield the leaves of one type that starts ``start`` bytes into an element.

        Raises:
            _UnknownLayoutError: Members overlap, are bit fields or are of no scalar type.
        """
        facts = self.read(kind, depth + 1)
        if depth > _MAX_DEPTH or not facts.size_bytes:
            raise _UnknownLayoutError
        if facts.scalar:
            count = facts.size_bytes // SCALAR_BYTES[facts.scalar]
            yield Leaf(offset_bytes=start, scalar_type=facts.scalar, count=count)
            return
        canonical = kind.get_canonical()
        if facts.shape is TypeClass.ARRAY:
            element = canonical.element_type
            stride = max(1, element.get_size())
            if facts.size_bytes // stride > MAX_LEAVES:
                raise _UnknownLayoutError
            for offset in range(0, facts.size_bytes, stride):
                yield from self._flat(element, start + offset, depth + 1)
        elif facts.shape is TypeClass.RECORD:
            if canonical.get_declaration()._kind_id == _UNION_DECLARATION:
                raise _UnknownLayoutError
            for field in canonical.get_fields():
                bits = field.get_field_offsetof()
                if bits < 0 or bits % 8 or field.is_bitfield():
                    raise _UnknownLayoutError
                yield from self._flat(field.type, start + bits // 8, depth + 1)
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
