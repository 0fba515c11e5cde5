"""The common way to read configuration: typed nodes, TOML presets, ``--set key=value``, one hash.

Owns the base class of every config node, the preset loader and the error text. Does not own any
key: a node is declared beside the component that reads it (``workers/config.py``,
``trainer/config.py``).
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

import pydantic
from pydantic_core import PydanticCustomError

from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.ids import canonical_json

_logger = logging.getLogger(__name__)
NodeT = TypeVar("NodeT", bound="Node")


class ConfigError(LlmperfError, ValueError):
    """An unusable config key or value; the message names the key, the value and what is allowed."""

    exit_code = Exit.USAGE


class Node(pydantic.BaseModel):
    """One frozen node of a config tree; unknown keys and values out of range are errors."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        validate_default=True,
        allow_inf_nan=False,  # no key needs inf or NaN, and the hash's JSON has neither
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build the node from nested mappings.

        Raises:
            ConfigError: A key or value is wrong. The message has a line for each: the dotted name
                of the key, its value, and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            items = _innermost(error)
            lines = [_explain(cls, item) for item in items[:_MOST_EXPLAINED]]
            more = len(items) - len(lines)
            raise ConfigError(
                "\n".join([*lines, *([f"and {more} more"] if more else [])])
            ) from None

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_switch_as_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Refuse ``true`` where no field takes it; pydantic would read it as the number 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if _has_switch(value) and not _takes_switch(kind):
            raise PydanticCustomError("switch", "must be another type than true or false")
        return value

    def content_hash(self) -> str:
        """Return a hash of all values of the tree: 20 hex digits."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json")).encode()).hexdigest()[
            :20
        ]


def _has_switch(value: Any) -> bool:
    """Whether a value is ``true`` or ``false``, or contains one at any depth.

    >>> _has_switch({"a": [[1, True]]}), _has_switch([[1], {"a": 2}])
    (True, False)
    """
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, bool):
            return True
        if isinstance(one, Mapping | list | tuple | set | frozenset) and id(one) not in seen:
            seen.add(id(one))  # a list may contain itself
            waiting += one.values() if isinstance(one, Mapping) else one
    return False


def _takes_switch(kind: Any) -> bool:
    """Whether a field of this type may hold ``true``, or is a section, which checks its own fields.

    >>> _takes_switch(bool | None), _takes_switch(tuple[int, ...])
    (True, False)
    """
    if isinstance(kind, type) and issubclass(kind, Node):
        return True
    is_switch = kind is bool or kind is Any or isinstance(kind, bool)
    return is_switch or any(map(_takes_switch, get_args(kind)))


def key_names(node: type[Node], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a tree, in declaration order."""
    for name, field in node.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Node):
            yield from key_names(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def load_config(
    root: type[NodeT],
    *,
    preset: str | None = None,
    preset_folder: str = "",
    file: Path | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> NodeT:
    """Return a config tree: the defaults, replaced in turn by preset, file, ``values``, overrides.

    Args:
        root: the tree's root node class.
        preset: name of a TOML file.
        preset_folder: the folder of ``configs/`` that holds the preset.
        file: a user's TOML file.
        overrides: values by dotted key; or one or several texts ``key=value``, with the value in
            TOML syntax (bare words are taken as text).
        values: dotted keys set by command-line options; None values are left out.

    Raises:
        ConfigError: A key is unknown, a value out of range, a file unreadable.
    """
    tree: dict[str, Any] = {}
    if preset is not None:
        _merge(tree, _parse_toml(_read_preset(preset_folder, preset), f"preset {preset!r}"))
    if file is not None:
        try:
            text = _start_of(file).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {file}: {error}") from None
        _merge(tree, _parse_toml(text, str(file)))
    for key, value in (values or {}).items():
        if value is not None:
            _set_dotted(tree, key, value)
    for key, value in _pairs(overrides):
        _check_key(root, key)
        _set_dotted(tree, key, value)
    found = root.from_mapping(tree)
    _logger.debug("config: %s", found.model_dump(mode="json"))
    return found


def _start_of(file: Path) -> bytes:
    """Return the start of a user's file, one byte beyond the limit, as it may be huge or endless.

    A pipe that the shell has opened (``<(...)``, ``/dev/stdin``) is read as a file is. A named pipe
    is refused, because opening it would block until another process writes to it.
    """

    def opened(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)

    with open(file, "rb", opener=opened) as stream:
        is_pipe = stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
        if is_pipe and Path(os.path.realpath(file)).is_fifo():
            raise ConfigError(f"config file {file} is a named pipe: give a regular file")
        os.set_blocking(stream.fileno(), True)
        return stream.read(4 * _MAX_TOML_CHARS + 1)


def preset_names(folder: str) -> list[str]:
    """Return the names of the presets shipped in ``configs/<folder>/``."""
    root = resources.files("configs").joinpath(folder)
    return sorted(
        item.name[: -len(".toml")] for item in root.iterdir() if item.name.endswith(".toml")
    )


def _read_preset(folder: str, name: str) -> str:
    names = preset_names(folder)
    if name not in names:
        raise ConfigError(
            f"preset {name!r} is not one of {', '.join(names)}{_nearest(name, names)}"
        )
    return resources.files("configs").joinpath(folder).joinpath(f"{name}.toml").read_text("utf-8")


_MOST_SHOWN = 400
"""Maximum number of characters of a faulty value that a message shows."""
_MOST_EXPLAINED = 20
"""Maximum number of wrong keys that a message explains."""
_MAX_TOML_CHARS = 2**16
"""Maximum number of characters of a configuration file. Our own files have a few thousand."""
_MAX_KEY_PARTS = 32
"""Maximum number of dots in one key. ``tomllib`` takes N² steps and N² bytes for N of them."""
_TEXT_OR_COMMENT = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|(?P<comment>#[^\n]*+)",
    re.DOTALL,
)
"""A TOML text or comment. A text without a closing quote ends with its line or the file, so that
the search looks at each character only once."""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MAX_KEY_PARTS + 1}}}")


def _has_long_key(text: str) -> bool:
    """Whether a key in a TOML document has too many parts; dots in texts and comments do not count.

    >>> _has_long_key("a" + ".a" * 40 + " = 1"), _has_long_key("path = '" + "a." * 40 + "'")
    (True, False)
    """
    plain = _TEXT_OR_COMMENT.sub(lambda found: "" if found["comment"] else "text", text)
    return _LONG_KEY.search(plain) is not None


def _parse_toml(text: str, where: str) -> dict[str, Any]:
    if len(text) > _MAX_TOML_CHARS:
        raise ConfigError(
            f"{where} has more than {_MAX_TOML_CHARS} characters: too long for a configuration file"
        )
    if _has_long_key(text):
        raise ConfigError(
            f"{where}: a key has more than {_MAX_KEY_PARTS} dots: keys of a configuration have two "
            "or three parts, such as train.seed"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply") from None
    except ValueError as error:  # the number has more digits than Python allows
        raise ConfigError(f"{where}: a number cannot be read: {error}") from None


def _pairs(overrides: Mapping[str, Any] | Sequence[str]) -> list[tuple[str, Any]]:
    texts = [overrides] if isinstance(overrides, str) else overrides
    try:
        pairs = list(texts.items() if isinstance(texts, Mapping) else map(_parse_pair, texts))
        if all(isinstance(key, str) for key, _ in pairs):
            return pairs
    except (TypeError, AttributeError):  # not a sequence of texts
        pass
    raise ConfigError(
        f"overrides={overrides!r}: give values by key, such as {{'plan.seed': 7}}, or 'key=value'"
    )


def _parse_pair(text: str) -> tuple[str, Any]:
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: write it as key=value, for example plan.seed=7")
    return key.strip(), _parse_value(raw.strip())


def _parse_value(raw: str) -> Any:
    if len(raw) > _MAX_TOML_CHARS or _has_long_key(raw):
        return raw
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _set_dotted(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = tree.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"config key {dotted!r}: {parent!r} is a value, not a section")
        tree = inner
    tree[last] = value


def _check_key(root: type[Node], dotted: str) -> None:
    names = list(key_names(root))
    if dotted not in names:
        raise ConfigError(f"config key {dotted!r} is unknown{_nearest(dotted, names)}")


def _nearest(name: str, names: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"; did you mean {found[0]!r}?" if found else ""


def _innermost(error: pydantic.ValidationError) -> list[Any]:
    """Return the errors, without those of a list or table that an error of its entry caused."""
    items = error.errors()
    inside = {item["loc"][:depth] for item in items for depth in range(len(item["loc"]))}
    return [item for item in items if item["loc"] not in inside]


def _explain(root: type[Node], item: Mapping[str, Any]) -> str:
    dotted = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        nearest = _nearest(dotted, list(key_names(root)))
        return f"config key {_shown(dotted)} is unknown{nearest}"
    return f"config key {_shown(dotted)} = {_shown(item['input'])}: {_allowed(item)}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or deeply nested tables
        return f"(a {type(value).__name__} that is too large to show)"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def _allowed(item: Mapping[str, Any]) -> str:
    context = item.get("ctx") or {}
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = [f"{word} {context[key]}" for key, word in words.items() if key in context]
    return f"must be {' and '.join(limits)}" if limits else str(item["msg"])
