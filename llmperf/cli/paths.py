"""Paths that commands write to on this machine. Owns the refusal of S3 locations and of ``-`` there."""

from __future__ import annotations

from pathlib import Path

import typer

from llmperf.exits import CommandError, Exit


def local_only(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """Return ``path``, the value of the option ``param``; a typer callback.

    Raises:
        CommandError: It was an S3 location, which as a path would make a folder named ``s3:`` here, or ``-``.
    """
    if str(path) == "-":
        raise CommandError(
            Exit.USAGE,
            f"{param.opts[0]} -: this is not written to stdout: name a file or folder of its own",
        )
    if str(path).startswith("s3:/"):
        raise CommandError(
            Exit.USAGE, f"{path}: this is written on this machine: name a folder or file of its own"
        )
    return path
