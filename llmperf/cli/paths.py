"""The check of output paths that must be local files: S3 locations and ``-`` are refused."""

from __future__ import annotations

from pathlib import Path

import typer

from llmperf.exits import CommandError, Exit


def local_only(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """Return ``path``, the value of the option ``param``; used as a typer callback.

    Raises:
        CommandError: The value is ``-`` or an S3 location, which would create a folder ``s3:``.
    """
    if str(path) == "-":
        raise CommandError(
            Exit.USAGE,
            f"{param.opts[0]} -: this output cannot go to stdout: name a file or folder",
        )
    if str(path).startswith("s3:/"):
        raise CommandError(
            Exit.USAGE, f"{path}: this output cannot go to S3: name a local folder or file"
        )
    return path
