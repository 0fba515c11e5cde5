"""The page of the command line: every command with its options, and the exit codes."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from llmperf.cli.main import app
from llmperf.cli.shared_options import SHARED
from llmperf.exits import Exit
from llmperf.reference.markdown import table

EXIT_MEANINGS: dict[Exit, str] = {
    Exit.DONE: "Done. Failed rows do not change this code.",
    Exit.USAGE: "Usage: a wrong option or config key, a combination that this release does not "
    "support, a missing extra, a folder of another run, or an `--out` that the command "
    "did not write.",
    Exit.BAD_INPUT: "Bad input: a corpus, dataset, run or kernel cannot be used; a file or "
    "the output cannot be written; or `dataset verify` found a problem.",
    Exit.NO_DEVICE: "No device is usable, or the device can no longer be opened.",
    Exit.TOO_MANY_FAILURES: "`collect` stopped: more rows failed than `--max-failures`, or no "
    "kernel could be built (then nothing is recorded).",
    Exit.INTERRUPTED: "Interrupted (Ctrl-C or SIGTERM; for `collect` also SIGHUP, a closed terminal). "
    "`collect` has saved all finished tasks; the same command resumes.",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that is not a group, with its full name: ``llmperf dataset verify``."""
    yield from _leaves("llmperf", typer.main.get_command(app))


def option_names(command: Any) -> list[str]:
    """Return the option names of a command without ``--help``, and its arguments in brackets."""
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


def cli_page() -> Iterator[str]:
    """Yield the lines of ``cli.md``."""
    yield "Results go to stdout, everything else to stderr. `--json` prints one JSON document to"
    yield "stdout."
    yield ""
    yield "## Options of every command"
    yield ""
    yield "These options may stand before or after the command's name."
    yield ""
    yield from table(("option", "meaning"), _shared_rows())
    yield ""
    yield "`llmperf --install-completion` makes the current shell complete commands and options;"
    yield "`llmperf --show-completion` prints the completion script."
    yield ""
    yield "## Exit codes"
    yield ""
    yield from table(
        ("code", "name", "meaning"),
        ((str(code.value), code.name.lower(), EXIT_MEANINGS[code]) for code in Exit),
    )
    for name, command in commands():
        yield ""
        yield f"## `{name}`"
        yield ""
        yield str(command.help or "").strip()
        yield ""
        yield from table(("option", "value", "default", "meaning"), _parameter_rows(command))


def _shared_rows() -> Iterator[tuple[str, str]]:
    for option in SHARED:
        yield ", ".join(f"`{name}`" for name in option.opts), option.help
    yield "`--help`, `-h`", "Show the command's purpose and options."


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
    """Return the kind of an option's value, from the type annotation of its parameter."""
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
