"""The log of a part: JSON lines, flushed one by one, so that a killed process loses nothing it has finished.

Owns its form. Lines are ``{"ready": true}`` when a process can begin, ``{"begin": ITEM}`` before an item (a kernel, or a
launch config) and one ``{"sample_id": ...}`` line a launch config. ``at_s`` is the machine's monotonic clock, which
processes share.
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
        """The process has its device open and can begin."""
        self.write({"ready": True})

    def begin(self, item: str) -> None:
        """From here on, a death is this item's."""
        self.write({"begin": item})

    def write(self, line: Mapping[str, object]) -> None:
        """Write one line, with the time."""
        self._file.write(json.dumps({**line, "at_s": time.monotonic()}) + "\n")
        self._file.flush()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log; none where there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def begun_items(lines: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the items that were begun: finished, or the death of a process."""
    return frozenset(line["begin"] for line in lines if "begin" in line)


def rows_of(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines of launch configs; the last one where there are several."""
    return list({line["sample_id"]: line for line in lines if "sample_id" in line}.values())
