"""The page of the config keys and presets, and the example config files."""

from __future__ import annotations

import json
import textwrap
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from importlib import resources
from typing import Any

from pydantic.fields import FieldInfo

from cluster.config import ClusterConfig, NodePool
from llmperf.reference.markdown import table
from llmperf_common.config import Node, preset_names
from trainer.config import TrainConfig
from workers.config import CollectConfig


def config_page() -> Iterator[str]:
    """Yield the lines of ``config.md``."""
    yield "Each source of values overrides those before it: defaults, preset (`--preset`), TOML"
    yield "file (`--config`), options of the command, `--set key=value`. Unknown keys and values"
    yield "out of range end with exit code 2. Example files contain every key with its default:"
    yield "[collect-example.toml](collect-example.toml), [train-example.toml](train-example.toml)."
    yield ""
    yield "## `llmperf collect`"
    yield ""
    yield "`plan.*` and `timing.*` are part of the plan hash, so another value needs a new dataset."
    yield "The values of other sections may change when a run is resumed."
    yield ""
    yield from table(("key", "default", "allowed", "meaning"), _keys(CollectConfig))
    yield ""
    yield "With `--cluster` there are more keys; none of them is part of the plan hash. An entry of"
    yield "`cluster.pools` has:"
    yield ""
    for name, field in NodePool.model_fields.items():
        yield f"- `{name}`: {field.description}"
    yield ""
    pools = '{labels={pool="a"}}, {labels={pool="b"}, device="cpu"}'
    yield f"For example `--set 'cluster.pools=[{pools}]'`."
    yield ""
    yield from table(
        ("key", "default", "allowed", "meaning"), _keys(ClusterConfig, prefix="cluster.")
    )
    yield ""
    yield from _presets("collect")
    yield ""
    yield "## `llmperf train`"
    yield ""
    yield from table(("key", "default", "allowed", "meaning"), _keys(TrainConfig))
    yield ""
    yield from _presets("train")


def _keys(node: type[Node], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    for name, field in node.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Node):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            default = f"`{_toml(field.default)}`" if field.default is not None else "none"
            yield f"`{prefix}{name}`", default, _allowed(field), field.description or ""


def example(command: str, root: type[Node], more: Iterable[str] = ()) -> str:
    """Return a config file with all keys and their defaults, all commented out."""
    lines = [
        f"# All keys of `llmperf {command} --config FILE` with their defaults. Uncomment the keys "
        "to change.",
        "# Written by `make docs` from the code: copy this file before you edit it.",
    ]
    return "\n".join([*lines, *_example_keys(root), *more]) + "\n"


def _example_keys(node: type[Node], section: str = "") -> Iterator[str]:
    for name, field in node.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Node):
            yield from ("", f"[{section}{name}]")
            yield from _example_keys(inner, f"{section}{name}.")
            continue
        yield ""
        text = f"{field.description or name} Allowed: {_allowed(field)}.".replace("`", "")
        yield from textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")
        unset = field.default is None
        yield f"# {name}: unset by default" if unset else f"#{name} = {_toml(field.default)}"


def example_of_cluster() -> Iterator[str]:
    """Yield the lines of the ``[cluster]`` section of an example file."""
    yield from (
        "",
        "# Only with `--cluster`: without that option the section is refused, so its header is "
        "commented out, too.",
    )
    yield from ("", "#[cluster]")
    yield from _example_keys(ClusterConfig)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, Node):
        said = value.model_dump(exclude_defaults=True)
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in said.items()) + "}"
    return json.dumps(value.value if isinstance(value, Enum) else value)


def _allowed(field: FieldInfo) -> str:
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "entries ≥"}
    limits = [
        f"{sign} {getattr(item, word):,}"
        for item in field.metadata
        for word, sign in words.items()
        if getattr(item, word, None) is not None
    ]
    choices = _choices(field.annotation)
    if choices:
        return ", ".join(f"`{_toml(choice)}`" for choice in choices)
    return ", ".join(limits) or ("true, false" if field.annotation is bool else "a list of texts")


def _choices(annotation: Any) -> tuple[Any, ...]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(annotation)
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return inner
    return next((found for one in inner if (found := _choices(one))), ())


def _presets(folder: str) -> Iterator[str]:
    yield f"Presets (`configs/{folder}/`):"
    for name in preset_names(folder):
        text = resources.files("configs").joinpath(folder, f"{name}.toml").read_text("utf-8")
        yield ""
        yield f"`{name}`:"
        yield ""
        yield "```toml"
        yield text.rstrip()
        yield "```"
