"""``llmperf kernels``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from llmperf.cli.console import answer_json, answer_table, say
from llmperf.cli.paths import local_only
from llmperf.exits import CommandError, Exit


def kernels(
    copy: Annotated[
        Path | None,
        typer.Option(
            "--copy",
            metavar="DIR",
            help="Copy the kernels to a folder: sources, .toml files and their README.",
            callback=local_only,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the OpenCL kernels that come with llmperf, or copy them as a first corpus."""
    from llmperf.own_kernels import copy_kernels, own_kernels  # noqa: PLC0415

    if copy is not None:
        if as_json:
            what = (
                "--json and --copy cannot be combined: --json prints the list of kernels, --copy "
                "copies the kernels"
            )
            raise CommandError(Exit.USAGE, what)
        say(f"{copy_kernels(copy)} sources copied to {copy}")
        return
    found = list(own_kernels())
    if as_json:
        answer_json([dataclasses.asdict(one) for one in found])
        return
    rows = [(one.name, one.file, one.dims, one.description) for one in found]
    answer_table("kernels of llmperf", ("kernel", "file", "dims", "what it computes"), rows)
