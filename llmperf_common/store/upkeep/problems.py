"""The problems of a dataset as values: verification collects all of them.

Owns the kinds of problems, and how many rows one problem names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from llmperf_common.files.visible import shortened

_NAMED = 3


class ProblemKind(StrEnum):
    """The subject of a problem."""

    RUN = "run"
    """``run.json`` is missing or damaged."""
    MANIFEST = "manifest"
    """A manifest is missing, damaged, of another plan, or does not follow from the version before
    it."""
    MISSING = "missing"
    """A listed shard does not exist."""
    BYTES = "bytes"
    """A shard's length or sha256 is not the one in the manifest."""
    DAMAGED = "damaged"
    """A shard does not decode, lacks a column, or has a list with nulls or an impossible device."""
    FOOTER = "footer"
    """A shard's footer, its rows and the manifest contradict each other."""
    PAIR = "pair"
    """A kernels shard and the samples shard of the same name do not belong together."""
    TWICE = "twice"
    """A task, sample or device occurs more than once."""
    ID = "id"
    """An id is none, or an id or a hash does not match the content."""
    STATUS = "status"
    """A status is unknown, or does not fit the row."""
    TIME = "time"
    """A time is missing, exists for a failed launch, is not positive, or a statistic is wrong."""
    WORK = "work"
    """The work of a launch is not a number, or exists beside a reason why it was not counted."""
    REFERENCE = "reference"
    """A row names a task, kernel or device that does not exist, or contradicts it."""
    ORPHAN = "orphan"
    """A Parquet file that no manifest lists, although no collector runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding: ``name`` is the file; ``what`` says what is wrong, and where in the file."""

    kind: ProblemKind
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what} [{self.kind}]"


def naming(items: Sequence[str], what: str, noun: str = "row") -> str:
    """Return a text saying that ``what`` holds for ``items``, with the names of the first few.

    >>> naming(["a", "b", "c", "d"], "has no time")
    '4 rows: has no time (a, b, c, ...)'
    """
    shown = ", ".join(map(shortened, items[:_NAMED])) + (", ..." if len(items) > _NAMED else "")
    return f"{len(items)} {noun}{'s' if len(items) != 1 else ''}: {what} ({shown})"
