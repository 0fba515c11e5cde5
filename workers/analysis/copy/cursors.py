"""Answer questions about libclang's cursors that its Python binding does not answer.

This module uses libclang, like ``clang/parse.py``. It says what an expression is below casts and
parentheses, and where it is in the file.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from clang import cindex

from workers.analysis.copy.punctuation import closed_end

MEMBER, CALL, SUBSCRIPT, UNARY = 102, 103, 113, 112
VARIABLE, PARAMETER, REFERENCE = 9, 10, 101
UNEXPOSED, STRING, PAREN, TYPE_REF, FIRST_ATTRIBUTE = 100, 109, 111, 43, 400
_ADDRESS_OF, _DEREFERENCE = 5, 6
_BINARY, _DIVISIONS = frozenset({114, 115}), frozenset({4, 5, 24, 25})
POINTER = 101
ARRAYS = frozenset({112, 114, 115, 116})
_VECTORS = frozenset({113, 176})
_TYPES = frozenset({2, 3, 5, TYPE_REF})
"""Numbers of structures, unions, enumerations and references to types. They are not visited:
libclang shows nested types twice, so a visit of n levels would take 2**n steps."""
COMPOUND, IF, WHILE, DO, FOR = 202, 205, 207, 208, 209
LABEL, CASE, DEFAULT, SWITCH, _DECL_STMT = 201, 203, 204, 206, 231
RETURN = 214
JUMPS = frozenset({210, 211})
"""Kinds of ``goto``, with a label or an address."""
_NESTING = frozenset({IF, WHILE, FOR, LABEL, CASE, DEFAULT, SWITCH})
BARRIERS = frozenset({"barrier", "work_group_barrier"})


def children_of(cursor: Any) -> list[Any]:
    """Return the expressions and statements below a cursor, without types and attributes."""
    return [
        child
        for child in cursor.get_children()
        if child._kind_id not in _TYPES and child._kind_id < FIRST_ATTRIBUTE
    ]


def operator(cursor: Any) -> int:
    """Return libclang's number for a unary operator."""
    return int(cindex.conf.lib.clang_getCursorUnaryOperatorKind(cursor))


def is_division(cursor: Any) -> bool:
    """Whether a cursor is a division or a remainder."""
    if cursor._kind_id not in _BINARY:
        return False
    return int(cindex.conf.lib.clang_getCursorBinaryOperatorKind(cursor)) in _DIVISIONS


def is_dereference(cursor: Any) -> bool:
    """Whether a cursor is ``*pointer``."""
    return bool(cursor._kind_id == UNARY and operator(cursor) == _DEREFERENCE)


def is_address(cursor: Any) -> bool:
    """Whether a cursor is ``&place``."""
    return bool(cursor._kind_id == UNARY and operator(cursor) == _ADDRESS_OF)


def is_bit_field(cursor: Any) -> bool:
    """Whether a member is a bit field, which has no address."""
    member = cursor.referenced
    return bool(member is not None and member.is_bitfield())


def strip(cursor: Any) -> Any:
    """Return the expression below implicit casts and parentheses."""
    while cursor._kind_id in {UNEXPOSED, PAREN}:
        inner = children_of(cursor)
        if len(inner) != 1:
            return cursor
        cursor = inner[0]
    return cursor


def decayed_array(cursor: Any) -> Any | None:
    """Return the array from which a pointer operand decays; None if the operand is a pointer."""
    inner = strip(cursor)
    if inner.type.get_canonical().get_array_size() < 0 or _is_parameter(inner):
        return None
    return inner


def _is_parameter(cursor: Any) -> bool:
    """Whether a cursor refers to a function parameter.

    libclang gives a parameter ``x[8]`` an array type, although the parameter is a pointer.
    """
    return bool(cursor._kind_id == REFERENCE and cursor.referenced._kind_id == PARAMETER)


def lies_behind_pointer(cursor: Any) -> bool:
    """Whether a place is reached through a pointer and is not part of a variable."""
    cursor = strip(cursor)
    while True:
        kind, children = cursor._kind_id, children_of(cursor)
        if is_dereference(cursor):
            return decayed_array(children[0]) is None or lies_behind_pointer(
                decayed_array(children[0])
            )
        if kind == SUBSCRIPT and len(children) == 2:
            arrays = [one for child in children if (one := decayed_array(child)) is not None]
            if not arrays:
                return not _is_vector(children)
            cursor = arrays[0]
        elif kind == MEMBER and children:
            base = strip(children[0])
            kind = base.type.get_canonical()
            if kind._kind_id == POINTER or (kind._kind_id in ARRAYS and _is_parameter(base)):
                return True
            cursor = base
        else:
            return False


def named_place(pointer: Any) -> Any | None:
    """Return the part of a variable to which a pointer points (``&x[i]``, array ``x``), or None."""
    inner = strip(pointer)
    place = children_of(inner)[0] if is_address(inner) else decayed_array(inner)
    return None if place is None or lies_behind_pointer(place) else place


def holds_addresses(variable: Any) -> bool:
    """Whether the initialiser of a variable names another variable, or has a string."""
    stack = children_of(variable)
    while stack:
        one = stack.pop()
        if one._kind_id == STRING:
            return True
        if one._kind_id == REFERENCE and one.referenced._kind_id == VARIABLE:
            return True
        stack.extend(children_of(one))
    return False


def only_string(variable: Any) -> Any | None:
    """Return the string that initialises a pointer; None if the initialiser is anything else."""
    values = children_of(variable)
    while values and values[-1]._kind_id in {UNEXPOSED, PAREN}:
        values = children_of(values[-1])
    return values[-1] if values and values[-1]._kind_id == STRING else None


def _is_vector(operands: list[Any]) -> bool:
    # Do not strip the operands: an index may be a lane ``v.x``, and below it is the whole vector.
    return any(one.type.get_canonical()._kind_id in _VECTORS for one in operands)


def has_barrier(cursor: Any) -> bool:
    """Whether there is a barrier below a cursor, or a call of a function that has a barrier."""
    stack, seen = [cursor], set()
    while stack:
        one = stack.pop()
        if one._kind_id == CALL:
            if one.spelling in BARRIERS:
                return True
            callee = one.referenced
            definition = callee.get_definition() if callee is not None else None
            if definition is not None and definition.hash not in seen:
                seen.add(definition.hash)  # a recursive function is visited once
                stack.append(definition)
        stack.extend(children_of(one))
    return False


def text_range(cursor: Any) -> tuple[int, int]:
    """Return the byte offsets of a cursor in the file."""
    extent = cursor.extent
    return _file_offset(extent.start), _file_offset(extent.end)


def statement_end(raw: bytes, statement: Any, end: int) -> int:
    """Return the end of a statement with its semicolon, which libclang's range leaves out."""
    while statement._kind_id in _NESTING:
        statement = children_of(statement)[-1]
    if statement._kind_id in {COMPOUND, _DECL_STMT}:
        return end
    end = closed_end(raw, text_range(statement)[0], end)
    match = re.compile(rb"\s*;").match(raw, end)
    return match.end() if match and not raw[:end].endswith(b";") else end


def _file_offset(location: Any) -> int:
    """Return the offset of a location: in a macro's argument, not where the macro expands."""
    offset = ctypes.c_uint()
    cindex.conf.lib.clang_getFileLocation(location, None, None, None, ctypes.byref(offset))
    return int(offset.value)
