"""The options of every command: ``--version``, ``--verbose``, ``--quiet``.

Owns the two base classes of commands and of groups of commands. They accept these options before
and after a command's name, so that no command declares the options itself.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import llmperf
from llmperf.cli.console import Loudness, say, set_loudness
from llmperf.exits import CommandError, Exit

_KEY = "llmperf.loudness"


def _version(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        typer.echo(llmperf.__version__)
        raise typer.Exit


def _loudness(context: typer.Context, option: typer.CallbackParam, wanted: bool) -> None:
    """Store the loudness in ``meta``, which a command and the groups above it share."""
    if context.resilient_parsing:
        return  # shell completion: the command does not run
    asked = Loudness(option.name)
    before = context.meta.setdefault(_KEY, Loudness.NORMAL)
    if wanted and before not in (asked, Loudness.NORMAL):
        raise CommandError(Exit.USAGE, "--verbose and --quiet cannot be combined: leave one out")
    if wanted:
        context.meta[_KEY] = asked
    set_loudness(context.meta[_KEY])


def _shared(
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            callback=_loudness,
            expose_value=False,
            help="Also write the log of each step to stderr.",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            callback=_loudness,
            expose_value=False,
            help="Write only results and errors.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            expose_value=False,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Declare the shared options; never called."""


def _declared() -> list[Any]:
    """Return the options of ``_shared``.

    typer itself makes them from that function, because its classes of options differ by release.
    """
    app = typer.Typer(add_completion=False)
    app.command()(_shared)
    return list(typer.main.get_command(app).params)


SHARED = _declared()


def _takes_one(parameter: Any) -> bool:
    return (
        parameter.param_type_name == "option" and not parameter.multiple and not parameter.is_flag
    )


class Command(TyperCommand):
    """A command with the shared options; it warns when a repeated option overwrites a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's parameters, then the shared ones."""
        *own, help_ = super().get_params(ctx)
        return [*own, *SHARED, help_]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; warn if a repeated option overwrites its first value."""
        given = [] if ctx.resilient_parsing else self._given(ctx, args)
        left: list[str] = super().parse_args(ctx, args)  # also sets the loudness
        for option, times in Counter(given).items():
            if times > 1 and _takes_one(option):
                say(
                    f"warning: {option.opts[0]} takes one value and is given twice: "
                    "the last one is used"
                )
        return left

    def _given(self, ctx: Any, args: list[str]) -> list[Any]:
        """Return the given parameters in their order; a repeated parameter appears repeatedly."""
        return list(self.make_parser(ctx).parse_args(args=list(args))[2])


class Group(TyperGroup):
    """A group of commands with the shared options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the group's parameters, then the shared ones."""
        *own, help_ = super().get_params(ctx)
        return [*own, *SHARED, help_]
