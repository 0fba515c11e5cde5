"""The command tree and its entry point."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, NoReturn

import typer

import llmperf
from llmperf.cli import collect, corpus, dataset, doctor, model, report, status
from llmperf.exits import run_guarded

app = typer.Typer(
    name="llmperf",
    help="Predict how long a GPU kernel runs from its source, and collect the data that makes this possible.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its table cuts --samples-per-kernel off on 80 columns, and costs 0.1 s
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(llmperf.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


app.command("doctor", short_help="Say what is usable here and how to mend what is not.")(
    doctor.doctor
)
app.add_typer(corpus.app, name="corpus")
app.command("collect")(collect.collect)
app.command("status")(status.status)
app.add_typer(dataset.app, name="dataset")
app.command("train")(model.train)
app.command("evaluate")(model.evaluate)
app.command("predict")(model.predict)
app.command("report", short_help="Write one HTML page about a dataset, an evaluation or a corpus.")(
    report.report
)


def run() -> None:
    """Run the command line; the process ends with one of ``llmperf.exits.Exit``."""
    try:
        run_guarded(app)
    except SystemExit as end:
        _leave(end.code)


def _leave(code: str | int | None) -> NoReturn:
    """End the process with ``code``, now.

    Once a library's thread aborted the interpreter on its way out (exit code 134) after a command had ended with
    its message: nothing of ours is left to clean up by then.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
