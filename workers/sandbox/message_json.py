"""The JSON of a message between the collector and its children.

A value is read by the annotations of its dataclass, and is refused if it does not fit them: a
kernel's stray write can damage the child that sends it. pydantic would do the same, but its import
and its adapters for one child's messages cost more processor time than all messages of a task.

Owns the form: a dataclass is an object with all of its fields, a tuple is a list, and a number that
is not finite is null. ``channel.py`` owns the frames.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NoReturn

_Reader = Callable[[Any], Any]


class UnfitJsonError(ValueError):
    """The text is not the JSON of the wanted type."""


def to_json(message: object) -> bytes:
    """Return the JSON of a message.

    >>> from workers.sandbox.messages import ConfigStarted
    >>> to_json(ConfigStarted(started_index=3))
    b'{"started_index":3}'

    Raises:
        TypeError: A value has no form in JSON.
        UnicodeEncodeError: A text is not valid Unicode.
    """
    return json.dumps(_plain(message), ensure_ascii=False, separators=(",", ":")).encode()


def from_json(text: bytes, kind: type) -> Any:
    """Return the message of the class ``kind`` that ``to_json`` has written.

    Raises:
        UnfitJsonError: The text is damaged.
    """
    try:
        return _reader(kind)(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:  # text that is not UTF-8 or not JSON included
        raise UnfitJsonError(str(error)) from None


def _refuse(name: str) -> NoReturn:
    raise UnfitJsonError(f"{name} is not a number of JSON")


def _plain(value: Any) -> Any:
    """Return a value's form in JSON."""
    if value is None or isinstance(value, str | int):  # and with them bool and StrEnum
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _names(value.__class__)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@functools.cache
def _reader(kind: Any) -> _Reader:
    """Return the function that makes a value of the type ``kind`` of its form in JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _union_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is Mapping:
        assert arguments[0] is str, "the keys of a JSON object are texts"
        return _mapping_reader(_reader(arguments[1]))
    return _class_reader(kind)


def _class_reader(kind: type) -> _Reader:
    if kind is float:
        return _read_float
    if kind is str:
        return _read_text
    if kind in (int, bool, types.NoneType):
        return _exact_reader(kind)
    if issubclass(kind, Enum):
        return _enum_reader(kind)
    assert is_dataclass(kind), f"{kind} has no form in JSON"
    return _dataclass_reader(kind)


def _unfit(value: object, wanted: str) -> UnfitJsonError:
    return UnfitJsonError(f"{wanted} expected, found {type(value).__name__}")


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _unfit(value, "float")
    try:
        return float(value)
    except OverflowError:
        raise UnfitJsonError("a number too large for a float") from None


def _read_text(value: Any) -> str:
    if type(value) is not str:
        raise _unfit(value, "str")
    if not value.isascii():
        value.encode()  # JSON can escape half a character, which nothing can store
    return value


def _exact_reader(kind: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _unfit(value, kind.__name__)
        return value

    return read


def _enum_reader(kind: type[Enum]) -> _Reader:
    return lambda value: kind(_read_text(value))


def _tuple_reader(arguments: tuple[Any, ...]) -> _Reader:
    if arguments[-1] is Ellipsis:
        each = _reader(arguments[0])

        def read(value: Any) -> tuple[Any, ...]:
            return tuple(map(each, _listed(value)))

        return read
    readers = tuple(map(_reader, arguments))

    def read_fixed(value: Any) -> tuple[Any, ...]:
        if len(_listed(value)) != len(readers):
            raise UnfitJsonError(f"{len(readers)} values expected, found {len(value)}")
        return tuple(one(part) for one, part in zip(readers, value, strict=True))

    return read_fixed


def _listed(value: Any) -> list[Any]:
    if type(value) is not list:
        raise _unfit(value, "list")
    return value


def _mapping_reader(each: _Reader) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _unfit(value, "object")
        return {_read_text(key): each(one) for key, one in value.items()}

    return read


def _dataclass_reader(kind: type) -> _Reader:
    hints = typing.get_type_hints(kind)
    readers = tuple((name, _reader(hints[name])) for name in _names(kind))
    names = frozenset(_names(kind))

    def read(value: Any) -> Any:
        if type(value) is not dict or value.keys() != names:
            raise _unfit(value, kind.__name__)
        return kind(**{name: one(value[name]) for name, one in readers})

    return read


def _union_reader(kinds: Iterable[Any]) -> _Reader:
    """Return the reader of a union: the type in JSON decides, or the names of an object's fields."""
    by_type: dict[type, _Reader] = {}
    by_names: dict[frozenset[str], _Reader] = {}
    for kind in kinds:
        if isinstance(kind, type) and is_dataclass(kind):
            names = frozenset(_names(kind))
            assert names not in by_names, f"{kind} has the same fields as another"
            by_names[names] = _reader(kind)
            continue
        for found in _types_in_json(kind):
            by_type.setdefault(found, _reader(kind))
    if float in by_type:
        by_type.setdefault(int, _read_float)
    wanted = " or ".join(
        [found.__name__ for found in by_type]
        + [f"object with {', '.join(sorted(names))}" for names in by_names]
    )

    def read(value: Any) -> Any:
        known = by_names.get(frozenset(value)) if type(value) is dict else None
        known = known or by_type.get(type(value))
        if known is None:
            raise _unfit(value, wanted)
        return known(value)

    return read


def _types_in_json(kind: Any) -> tuple[type, ...]:
    """Return the types that ``json`` may find for a value of the type ``kind``, but a dataclass."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return (list,)
    if origin is Mapping:
        return (dict,)
    return (str,) if issubclass(kind, Enum) else (kind,)
