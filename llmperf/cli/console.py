"""Output of commands: results to stdout, everything else to stderr, one document for ``--json``.

Decides how much is written: ``--quiet`` only results and errors, ``--verbose`` also the log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from llmperf_common.files.visible import visible, visible_json, visible_lines
from llmperf_common.masking import masked

_PACKAGES = ("llmperf", "llmperf_common", "workers", "cluster", "trainer")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Loudness(Enum):
    """How much a command writes to stderr."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class _Formatter(logging.Formatter):
    """Masks passwords in log lines, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as text without passwords."""
        return visible_lines(masked(super().format(record)))


class _Console:
    """The loudness of this process, and its log handler."""

    loudness = Loudness.NORMAL
    handler: logging.Handler | None = None


def set_loudness(loudness: Loudness) -> None:
    """Set how much this process writes to stderr from now on.

    Of the log, ``QUIET`` shows errors, ``NORMAL`` shows warnings in Python's default form, and
    ``VERBOSE`` shows every line of LLMPerf's packages. Child processes are not affected.
    """
    _Console.loudness = loudness
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter("%(message)s"))
    root = logging.getLogger()
    if _Console.handler is not None:
        root.removeHandler(_Console.handler)
        _Console.handler = None
    if loudness is not Loudness.NORMAL:
        _Console.handler = logging.StreamHandler()
        _Console.handler.setFormatter(_Formatter(_LINE, datefmt="%H:%M:%S"))
        if loudness is Loudness.QUIET:
            _Console.handler.setLevel(logging.ERROR)
        root.addHandler(_Console.handler)
    for name in _PACKAGES:
        level = logging.DEBUG if loudness is Loudness.VERBOSE else logging.NOTSET
        logging.getLogger(name).setLevel(level)


def is_quiet() -> bool:
    """Whether the user wants only results and errors."""
    return _Console.loudness is Loudness.QUIET


def say(text: str = "", *, is_result: bool = False) -> None:
    """Write a line for the user to stderr; with ``--quiet`` only if it is a result."""
    if is_quiet() and not is_result:
        return
    # A log that cannot be written (`collect 2>&1 | head`, a full disk) must not end the run.
    with contextlib.suppress(OSError):
        sys.stderr.write(visible_lines(masked(text)) + "\n")
        sys.stderr.flush()


def answer(text: str = "") -> None:
    """Write a line of the result to stdout."""
    sys.stdout.write(visible(text) + "\n")


def answer_lines(text: str) -> None:
    """Write several lines of the result to stdout."""
    for line in text.split("\n"):
        answer(line)


def answer_json(document: Any) -> None:
    """Write the JSON document of a ``--json`` command to stdout."""
    text = json.dumps(document, indent=1, ensure_ascii=False, default=str)
    sys.stdout.write(visible_json(text) + "\n")


def answer_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to stdout with aligned columns, numbers aligned to the right."""
    from rich.console import Console  # noqa: PLC0415  (keeps `--help` fast)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(visible(title)), title_justify="left", title_style="bold")
    cells = [[_cell(value) for value in row] for row in rows]
    for index, name in enumerate(header):
        numeric = bool(cells) and all(
            row[index][:1].isdigit() or row[index] in ("", "-") for row in cells
        )
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout).print(table, markup=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return visible(str(value))
