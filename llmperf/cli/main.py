"""The command tree and its entry point."""

from __future__ import annotations

import io
import os
import resource
import sys
from typing import Any

import typer

from llmperf.cli import collect, corpus, dataset, doctor, kernels, model, report, status
from llmperf.cli.shared_options import Command, Group
from llmperf.exits import STANDARD_OUTPUT, leave, run_guarded, show_bug

app = typer.Typer(
    name="llmperf",
    cls=Group,
    help="Predict the run time of a GPU kernel from its source, and collect training data.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes 0.1 s to load, and shortens long option names at 80 columns
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command(
    "doctor", cls=Command, short_help="List usable devices, and say how to make others usable."
)(doctor.doctor)
app.command(
    "kernels", cls=Command, short_help="List the kernels that come with llmperf, or copy them."
)(kernels.kernels)
app.add_typer(corpus.app, name="corpus")
app.command("collect", cls=Command)(collect.collect)
app.command("status", cls=Command)(status.status)
app.add_typer(dataset.app, name="dataset")
app.command("train", cls=Command)(model.train)
app.command("evaluate", cls=Command)(model.evaluate)
app.command("calibrate", cls=Command)(model.calibrate)
app.command("predict", cls=Command)(model.predict)
app.command(
    "report",
    cls=Command,
    short_help="Write one HTML page about a dataset, an evaluation or a corpus.",
)(report.report)


def _open_standard_streams() -> None:
    """Open ``/dev/null`` for each closed standard stream.

    Without this, the next opened file, such as a ledger, could become descriptor 2, and a library's
    messages to stderr would overwrite it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    is_unbuffered = bool(getattr(sys.stdout, "write_through", False))  # PYTHONUNBUFFERED, -u
    raw = _StandardOutput(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),  # as Python itself does
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty(),
        write_through=is_unbuffered,
    )
    sys.stderr = sys.stderr or io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8"
    )


class _StandardOutput(io.FileIO):
    """The file of descriptor 1; its errors carry its name, so that messages name the right file."""

    def write(self, data: Any, /) -> int:
        """Write bytes; an error gets a file name, as if the file had been opened by name."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


def run() -> None:
    """Run the command line and end the process with a code of ``llmperf.exits.Exit``."""
    _open_standard_streams()
    sys.excepthook = show_bug
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        # Arrow's own allocator reserves address space in steps of 1 GiB, even if it uses less.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        run_guarded(app)
    except SystemExit as end:
        leave(end.code)
