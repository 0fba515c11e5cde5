"""Segments: files with the early parts of a manifest's list, which several versions share.

Owns their JSON form, when the newest part of a list becomes a segment, and when small segments are
merged. A segment is immutable and named after its content, ``segments/SHA256.json``. So manifests
can share a segment, and two publishers of the same segment write the same file. A segment that no
manifest names is an orphan. ``manifest.py`` defines the meaning of the entries.

A new version writes only the tail, the part of the list in the manifest itself, which has fewer
than ``SEALED_AT`` items. ``FANOUT`` segments of similar size are merged into one. So there are few
segments, and each of N entries is written only about log(N) times.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from llmperf_common.files.foreign_json import parse_json
from llmperf_common.ids import sha256_hex
from llmperf_common.store.files.names import checked_shard_name

SEGMENTS_FOLDER = "segments"
SEALED_AT = 128
"""Number of items (shards and replacements) at which the tail becomes a segment. Each version thus
rewrites at most some 25 KB."""
FANOUT = 16
_DIGITS = 32
_ROWS_OF = ("samples", "kernels", "devices")

Replacement = tuple[str, tuple[str, ...]]
"""The name of a compacted shard, and the names that it replaces."""


class Entry(Protocol):
    """The properties of a listed shard that segments use."""

    @property
    def name(self) -> str:
        """The shard's name, relative to the dataset."""
        ...

    @property
    def table(self) -> str:
        """The shard's table."""
        ...

    @property
    def rows(self) -> int:
        """The number of rows in the shard."""
        ...

    @property
    def tasks(self) -> int:
        """The number of tasks whose results the shard holds."""
        ...

    def to_json(self) -> str:
        """Return the entry as one line."""
        ...


EntryT = TypeVar("EntryT", bound=Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums over a part of a list; ``rows`` holds a sum for each table."""

    tasks: int
    rows: tuple[int, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Totals:
        """Add up entries."""
        tasks, rows = 0, dict.fromkeys(_ROWS_OF, 0)
        for entry in entries:
            table = entry.table
            rows[table] = rows.get(table, 0) + entry.rows
            if table == "kernels":
                tasks += entry.tasks
        return cls(tasks=tasks, rows=tuple(rows[table] for table in _ROWS_OF))

    def rows_of(self, table: str) -> int:
        """Return the rows of one table."""
        return self.rows[_ROWS_OF.index(table)]


def add_up(parts: Iterable[Totals]) -> Totals:
    """Return the totals of several parts."""
    tasks, rows = 0, [0] * len(_ROWS_OF)
    for part in parts:
        tasks += part.tasks
        rows = [one + more for one, more in zip(rows, part.rows, strict=True)]
    return Totals(tasks=tasks, rows=tuple(rows))


# The class has no slots, because ``_loaded`` refers to segments weakly. Up to Python 3.12.3 a
# generic class with slots cannot be weakly referenced, even with ``weakref_slot`` (CPython issue
# 118033).
@dataclass(frozen=True, kw_only=True, eq=False)
class Segment(Generic[EntryT]):
    """A part of a manifest's list, in memory.

    Attributes:
        name: name of the segment's file.
        bytes: length of the file.
        sha256: SHA-256 of the file.
        shards: entries of the segment, in the order in which they were published.
        replaces: replacements of the segment, in the same order.
    """

    name: str
    bytes: int
    sha256: str
    shards: tuple[EntryT, ...]
    replaces: tuple[Replacement, ...]
    names: frozenset[str] = field(init=False)
    replaced: frozenset[str] = field(init=False)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(entry.name for entry in self.shards))
        replaced = frozenset(name for _, old in self.replaces for name in old)
        object.__setattr__(self, "replaced", replaced)
        object.__setattr__(self, "totals", Totals.of(self.shards))

    @property
    def num_items(self) -> int:
        """The number of entries and replaced names, which decides when segments are merged."""
        return len(self.shards) + len(self.replaced)

    def to_reference(self) -> dict[str, Any]:
        """Return a manifest's reference to this segment."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "shards": len(self.shards),
        }


_loaded: WeakValueDictionary[str, Segment[Any]] = WeakValueDictionary()
"""Segments in memory by sha256. A publisher that keeps a manifest with a segment thus reads the
segment only once."""


def load(
    reference: dict[str, Any],
    read_bytes: Callable[[str], builtins.bytes],
    entry_of: Callable[[Any], EntryT],
) -> Segment[EntryT]:
    """Read the segment that a manifest names.

    Args:
        reference: the manifest's reference.
        read_bytes: reads a file of the dataset.
        entry_of: makes an entry from the entry's JSON object.

    Raises:
        ValueError: The segment is missing or damaged, or the name is not the name of a segment.
    """
    name, sha256 = str(reference["name"]), str(reference["sha256"])
    if name != name_of(sha256):
        raise ValueError(f"{ascii(name)[:80]} is not a name of a segment")
    known: Segment[EntryT] | None = _loaded.get(sha256)
    if known is not None:
        return known
    try:
        data = read_bytes(name)
    except FileNotFoundError:
        raise ValueError(f"{name} is missing") from None
    if sha256_hex(data) != sha256:
        raise ValueError(f"{name} is damaged: its bytes do not match the hash in its name")
    document = parse_json(data)
    found = Segment(
        name=name,
        bytes=len(data),
        sha256=sha256,
        shards=tuple(entry_of(item) for item in document["shards"]),
        replaces=replacements_of(document["replaces"]),
    )
    return _loaded.setdefault(sha256, found)


def make(
    shards: Sequence[EntryT], replaces: Sequence[Replacement]
) -> tuple[Segment[EntryT], builtins.bytes]:
    """Return a segment of these items, and the bytes of its file."""
    data = f'{{\n {lines_of(shards)},\n "replaces": {json.dumps(dict(replaces))}\n}}\n'.encode()
    sha256 = sha256_hex(data)
    made = Segment(
        name=name_of(sha256),
        bytes=len(data),
        sha256=sha256,
        shards=tuple(shards),
        replaces=tuple(replaces),
    )
    return _loaded.setdefault(sha256, made), data


def lines_of(shards: Iterable[Entry]) -> str:
    """Return entries as a JSON field, one line each, which is readable and fast to encode."""
    lines = ",\n  ".join(shard.to_json() for shard in shards)
    return f'"shards": [\n  {lines}\n ]' if lines else '"shards": []'


def replacements_of(document: dict[str, Any]) -> tuple[Replacement, ...]:
    """Read replacements from their JSON object."""
    return tuple(
        (checked_shard_name(name), tuple(map(checked_shard_name, old)))
        for name, old in document.items()
    )


def name_of(sha256: str) -> str:
    """Return the name of the segment whose bytes have this hash."""
    return f"{SEGMENTS_FOLDER}/{sha256[:_DIGITS]}.json"


def is_damaged(name: str, data: builtins.bytes) -> bool:
    """Whether a file's content does not match its name."""
    return name_of(sha256_hex(data)) != name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed(Generic[EntryT]):
    """The segments of a list, and the files of new segments. The other entries are the tail."""

    segments: tuple[Segment[EntryT], ...]
    files: tuple[tuple[str, builtins.bytes], ...]


def seal(
    segments: Sequence[Segment[EntryT]],
    tail: Sequence[EntryT],
    tail_replaces: Sequence[Replacement],
) -> Sealed[EntryT]:
    """Make a segment from a long enough tail, and merge segments of similar size."""
    kept = list(segments)
    made: dict[str, bytes] = {}
    length = len(tail) + sum(len(old) for _, old in tail_replaces)
    if length >= SEALED_AT:
        kept.append(_made(tail, tail_replaces, made))
    while (count := _num_alike(kept)) >= FANOUT:
        together = kept[-count:]
        shards = [entry for one in together for entry in one.shards]
        replaces = [item for one in together for item in one.replaces]
        kept[-count:] = [_made(shards, replaces, made)]
    names = {one.name for one in kept}
    files = tuple((name, data) for name, data in made.items() if name in names)
    return Sealed(segments=tuple(kept), files=files)


def _made(
    shards: Sequence[EntryT], replaces: Sequence[Replacement], files: dict[str, bytes]
) -> Segment[EntryT]:
    segment, data = make(shards, replaces)
    files[segment.name] = data
    return segment


def _num_alike(segments: Sequence[Segment[Any]]) -> int:
    """Return how many segments at the end of the list have at most the last segment's level."""
    if not segments:
        return 0
    level = _level(segments[-1])
    count = 0
    for segment in reversed(segments):
        if _level(segment) > level:
            break
        count += 1
    return count


def _level(segment: Segment[Any]) -> int:
    """Return how often a segment of this length was merged.

    Each merge makes a segment about ``FANOUT`` times longer.
    """
    level, length = 0, SEALED_AT * FANOUT
    while segment.num_items >= length:
        level, length = level + 1, length * FANOUT
    return level
