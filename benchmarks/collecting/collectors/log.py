"""The log of a part: JSON lines, each flushed, so that a killed process loses no finished result.

Owns the form of the log. A process writes ``{"ready": true}`` when it can begin, ``{"begin":
ITEM}`` before an item (a kernel or a launch config) and one ``{"sample_id": ...}`` line for each
launch config. ``at_s`` is the time of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO


class PartLog:
    """Appends to a part's log; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def ready(self) -> None:
        """Log that the process has opened its device and can begin."""
        self.write({"ready": True})

    def begin(self, item: str) -> None:
        """Log that an item begins; it counts as the cause if the process dies from now on."""
        self.write({"begin": item})

    def write(self, line: Mapping[str, object]) -> None:
        """Write one line, with the time."""
        self._file.write(json.dumps({**line, "at_s": time.monotonic()}) + "\n")
        self._file.flush()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log; none if there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def begun_items(lines: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the items that were begun, whether they finished or a process died in them."""
    return frozenset(line["begin"] for line in lines if "begin" in line)


def rows_of(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the line of each launch config; the last one if there are several."""
    return list({line["sample_id"]: line for line in lines if "sample_id" in line}.values())
