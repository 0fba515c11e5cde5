"""``python -m llmperf.reference FOLDER``: the reference pages, written from the code they describe.

Owns the form of ``docs/reference/*.md``. Owns no fact: options come from the command tree, columns from the
Arrow schemas, codes and keys from their tables, so a page that is stale fails a test. The only sentences kept
here are those that the code has as comments (what an exit code or a retry rule means).
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer.main
from pydantic.fields import FieldInfo

from cluster.config import ClusterConfig, NodePool
from cluster.telemetry.metrics import METRICS, TAGS
from llmperf.cli.main import app
from llmperf.cli.shared_options import SHARED
from llmperf.exits import CommandError, Exit, run_guarded
from llmperf.reference_api import api_page
from llmperf_common.config import Node, preset_names
from llmperf_common.failures import FAILURE_MEANINGS, OK_STATUS, RETRY_RULES, FailureCode, Retry
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.records import Access, ArgumentKind, Regime, StopReason, Strategy
from llmperf_common.schemas import SCHEMA_VERSION, TABLES
from trainer.config import TrainConfig
from trainer.evaluation.scoring import PREDICTIONS
from workers.collect.events import EVENT_KINDS, ON_EVERY_LINE
from workers.config import CollectConfig

_NOTE = "<!-- Written by `make docs` from the code. Do not edit: a test compares it. -->"

EXIT_MEANINGS: dict[Exit, str] = {
    Exit.DONE: "Done. Failed rows alone do not change it.",
    Exit.USAGE: "Usage: an option, a config key, a combination that is not in this release, a missing extra, a folder of another run, or an `--out` that holds what the command did not write.",
    Exit.BAD_INPUT: "Bad input: a corpus, dataset, run or kernel that cannot be used; `dataset verify` found a problem.",
    Exit.NO_DEVICE: "No usable device, or the device can no longer be opened.",
    Exit.TOO_MANY_FAILURES: "`collect` stopped because of more failed rows than `--max-failures`, or because no kernel could be built (none of that is recorded).",
    Exit.INTERRUPTED: "Interrupted (Ctrl-C or SIGTERM). `collect` has saved what was finished; the same command resumes.",
}

RETRY_MEANINGS: dict[Retry, str] = {
    Retry.NEVER: "No retry: the same input fails again.",
    Retry.ONCE_IN_FRESH_CHILD: "One more try in a new child process, before the row is committed.",
    Retry.ANOTHER_WORKER: "The lease runs out and another worker takes the task.",
}

_TABLE_TITLES = {
    "samples": "One row a launch config, timed or failed. Failed rows have null times.",
    "kernels": "One row a task (a kernel on a device class), committed together with its samples.",
    "devices": "One row a device.",
}


def render() -> dict[str, str]:
    """Return the text of every page by file name; equal on every machine.

    >>> sorted(render())
    ['api.md', 'cli.md', 'collect-example.toml', 'config.md', 'events.md', 'failure-codes.md', 'metrics.md', 'schema.md', 'train-example.toml']
    """
    return {
        "api.md": _page("Python API", api_page()),
        "cli.md": _page("Command line", _cli()),
        "collect-example.toml": _example("collect", CollectConfig, _example_of_cluster()),
        "config.md": _page("Configuration", _config()),
        "events.md": _page("Event log", _events()),
        "failure-codes.md": _page("Failure codes", _failures()),
        "metrics.md": _page("Metrics", _metrics()),
        "schema.md": _page("Dataset schema", _schema()),
        "train-example.toml": _example("train", TrainConfig),
    }


def main(arguments: Sequence[str]) -> None:
    """Write the pages into the folder that is the only argument.

    Raises:
        CommandError: There is not exactly one argument.
    """
    if len(arguments) != 1:
        raise CommandError(Exit.USAGE, "usage: python -m llmperf.reference FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (folder / name).write_text(text, encoding="utf-8")
        sys.stderr.write(f"{folder / name} written\n")


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its full name: ``llmperf dataset verify``."""
    yield from _leaves("llmperf", typer.main.get_command(app))


def option_names(command: Any) -> list[str]:
    """Return the option names of one command, ``--help`` left out, and its arguments in brackets."""
    names: list[str] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            names.append(f"[{_argument_name(parameter)}]")
        else:
            names += [*parameter.opts, *parameter.secondary_opts]
    return names


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for child_name, child in inner.items():
        yield from _leaves(f"{name} {child_name}", child)


def _page(title: str, lines: Iterable[str]) -> str:
    return "\n".join([_NOTE, "", f"# {title}", "", *lines]).rstrip() + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in escaped),
    ]


def _cli() -> Iterator[str]:
    yield "Results go to stdout, everything else to stderr. `--json` prints one JSON document on stdout."
    yield ""
    yield "## Options of every command"
    yield ""
    yield "They stand before the command's name or behind it."
    yield ""
    yield from _table(("option", "meaning"), _shared_rows())
    yield ""
    yield "`llmperf --install-completion` makes the current shell complete commands and options; `llmperf --show-completion`"
    yield "prints the script that does so."
    yield ""
    yield "## Exit codes"
    yield ""
    yield from _table(
        ("code", "name", "meaning"),
        ((str(code.value), code.name.lower(), EXIT_MEANINGS[code]) for code in Exit),
    )
    for name, command in commands():
        yield ""
        yield f"## `{name}`"
        yield ""
        yield str(command.help or "").strip()
        yield ""
        yield from _table(("option", "value", "default", "meaning"), _parameter_rows(command))


def _shared_rows() -> Iterator[tuple[str, str]]:
    for option in SHARED:
        yield ", ".join(f"`{name}`" for name in option.opts), option.help
    yield "`--help`, `-h`", "Show what the command does and its options."


def _parameter_rows(command: Any) -> Iterator[tuple[str, str, str, str]]:
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    for parameter in command.params:
        meaning = str(parameter.help or "")
        if parameter.param_type_name == "argument":
            need = "required" if parameter.required else "-"
            yield f"`{_argument_name(parameter)}`", "path or name", need, meaning
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = _value_word(hints[parameter.name])
        yield names, value, _option_default(parameter, is_flag=value == "flag"), meaning


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]")


def _value_word(hint: Any) -> str:
    """Say what an option takes, from the annotation of the function behind it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is list:
        return f"{_value_word(typing.get_args(hint)[0])}, repeatable"
    return {bool: "flag", int: "whole number", Path: "path"}.get(hint, "text")


def _option_default(parameter: Any, *, is_flag: bool) -> str:
    if parameter.required:
        return "required"
    if parameter.default is None or (is_flag and not parameter.default):
        return "-"
    return f"`{parameter.default}`"


_MANIFEST_FIELDS = (
    ("`schema_version`, `version`", "Of this table of fields and columns; of the dataset, as in the file's name."),
    ("`plan_hash`, `epoch`", "Of the run; of the ledger whose collector has published it. An epoch never falls."),
    ("`published_s`", "Seconds since 1970; not in versions below 5."),
    ("`tasks`, `rows`", "With results; by table. Of the whole list."),
    ("`earlier`", "Versions before it that are still there: [version, published_s]. Not in versions below 5."),
    ("`dropped`", "Shards that `llmperf dataset repair` has taken out. Not in versions below 5."),
    ("`replaces`", "By the name of each compacted shard the names that it stands for; those of segments count, too."),
    ("`segments`", "Files with the first part of the list: name, bytes, sha256, shards (how many). Each is one JSON object with `shards` and `replaces`. Not in versions below 5: there all is in the manifest."),
    ("`shards`", "The newest part of the list: name, rows, bytes, sha256, tasks."),
)  # fmt: skip


def _schema() -> Iterator[str]:
    yield f"Schema version {SCHEMA_VERSION}. A dataset is three tables of Parquet shards; the highest"
    yield "`manifest-*.json` lists the shards that count. Later versions only add nullable columns."
    yield ""
    yield "## `manifest-*.json`"
    yield ""
    yield "One JSON object. The list of shards is that of its `segments`, in their order, and then its own `shards`;"
    yield "`llmperf_common.store.manifests.manifest.latest_manifest(open_filesystem(DIR)).shards` is the whole list."
    yield ""
    yield from _table(("field", "meaning"), _MANIFEST_FIELDS)
    for table, schema in TABLES.items():
        yield ""
        yield f"## `{table}`"
        yield ""
        yield _TABLE_TITLES[table]
        yield ""
        yield from _columns(schema)
    yield ""
    yield "## Values of text columns"
    yield ""
    yield from _table(("column", "values"), _value_rows())
    yield ""
    yield "## `static_features`"
    yield ""
    yield "Members of `kernels.static_features`, each a float64."
    yield ""
    yield from _table(
        ("name", "meaning"), ((f"`{name}`", text) for name, text in STATIC_FEATURES.items())
    )
    yield ""
    yield "## `predictions.parquet`"
    yield ""
    yield "Written by `llmperf train` and `llmperf evaluate`: one row a model and sample. The interval is null"
    yield "where a model gives none."
    yield ""
    yield from _columns(PREDICTIONS, with_meaning=False)


def _columns(schema: pa.Schema, *, with_meaning: bool = True) -> list[str]:
    head = ("column", "type", "unit", "nullable", "meaning")
    rows = []
    for field in schema:
        metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
        row = (
            f"`{field.name}`",
            _kind(field.type),
            metadata.get("unit", ""),
            "yes" if field.nullable else "no",
            metadata.get("description", ""),
        )
        rows.append(row if with_meaning else row[:4])
    return _table(head if with_meaning else head[:4], rows)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        names = [member.name for member in kind]
        if names == list(STATIC_FEATURES):
            return "struct, see below"
        return "{" + ", ".join(f"{member.name}: {_kind(member.type)}" for member in kind) + "}"
    return {"double": "float64", "string": "text"}.get(str(kind), str(kind))


def _value_rows() -> Iterator[tuple[str, str]]:
    yield "`samples.status`", _values([OK_STATUS, *FailureCode])
    yield "`samples.regime`", _values(Regime)
    yield "`samples.input_strategy`, `samples.input_strategies`", _values(Strategy)
    yield "`samples.stop_reason`", _values(StopReason)
    yield "`samples.args.kind`, `kernels.args.kind`", _values(ArgumentKind)
    yield "`kernels.args.access`", _values(Access)


def _values(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _failures() -> Iterator[str]:
    yield "A failure is a row: `samples.status` holds its code, `samples.failure_detail` the evidence (at most"
    yield "8 KB, head and tail kept). Retries happen before a row is committed; a committed row is final."
    yield ""
    yield from _table(
        ("code", "meaning", "retry rule"),
        (
            (f"`{code}`", FAILURE_MEANINGS[code], RETRY_MEANINGS[RETRY_RULES[code]])
            for code in FailureCode
        ),
    )


def _config() -> Iterator[str]:
    yield "A tree is resolved in this order: defaults, preset (`--preset`), file (`--config`, TOML), options of the"
    yield "command, `--set key=value`. Unknown keys and values out of range end with exit code 2."
    yield "Files to begin with, every key in them with its default: [collect-example.toml](collect-example.toml),"
    yield "[train-example.toml](train-example.toml)."
    yield ""
    yield "## `llmperf collect`"
    yield ""
    yield "`plan.*` and `timing.*` enter the plan hash: another value is another dataset. The other sections"
    yield "may change between two starts of the same run."
    yield ""
    yield from _table(("key", "default", "allowed", "meaning"), _keys(CollectConfig))
    yield ""
    yield "With `--cluster` also these; none of them enters the plan hash. An entry of `cluster.pools` has:"
    yield ""
    for name, field in NodePool.model_fields.items():
        yield f"- `{name}`: {field.description}"
    yield ""
    yield 'For example `--set \'cluster.pools=[{labels={pool="a"}}, {labels={pool="b"}, device="cpu"}]\'`.'
    yield ""
    yield from _table(
        ("key", "default", "allowed", "meaning"), _keys(ClusterConfig, prefix="cluster.")
    )
    yield ""
    yield from _presets("collect")
    yield ""
    yield "## `llmperf train`"
    yield ""
    yield from _table(("key", "default", "allowed", "meaning"), _keys(TrainConfig))
    yield ""
    yield from _presets("train")


def _events() -> Iterator[str]:
    yield "`DIR/events/` (for a dataset in S3: `events/` in the state folder of each host) has a file of JSON lines for each process that"
    yield "has collected. It is for people and tools that ask why; the dataset never depends on it. Warnings that a process logs are among its lines, so one `grep` finds them."
    yield ""
    yield from _table(
        ("on every line", "meaning"), ((f"`{name}`", text) for name, text in ON_EVERY_LINE)
    )
    yield ""
    yield from _table(
        ("`event`", "fields", "meaning"),
        ((f"`{kind}`", fields, text) for kind, (fields, text) in EVENT_KINDS.items()),
    )


def _metrics() -> Iterator[str]:
    yield "With `--cluster`, through the metrics agent of each Ray node: Prometheus scrapes `MetricsExportPort` of each node"
    yield "(`ray start --metrics-export-port`). Ray puts `ray_` before each name and `_total` after those of counters:"
    yield "`ray_llmperf_samples_total`. Values come every 2 s from a worker, every 10 s from Ray."
    yield "The agent asks for no password: it listens on the network of its node; on loopback alone where the command starts Ray itself."
    yield ""
    yield f"Tags of all: {_values(TAGS)} (Ray adds its own)."
    yield ""
    yield from _table(
        ("name", "kind", "own tags", "meaning"),
        (
            (f"`{one.name}`", one.kind.value, ", ".join(one.tags) or "-", one.meaning)
            for one in METRICS
        ),
    )


def _keys(node: type[Node], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    for name, field in node.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Node):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            default = f"`{_toml(field.default)}`" if field.default is not None else "none"
            yield f"`{prefix}{name}`", default, _allowed(field), field.description or ""


def _example(command: str, root: type[Node], more: Iterable[str] = ()) -> str:
    """Return a config file of all keys, each a comment with its default: nothing changes until one is uncommented."""
    lines = [
        f"# All keys of `llmperf {command} --config FILE` with their defaults. Uncomment what you change.",
        "# Written by `make docs` from the code: copy it before you edit it.",
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


def _example_of_cluster() -> Iterator[str]:
    yield from (
        "",
        "# Only with `--cluster`; without it [cluster] is refused, so its line is a comment, too.",
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


if __name__ == "__main__":
    run_guarded(lambda: main(sys.argv[1:]))
