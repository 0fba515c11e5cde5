"""Manifests: the list of shards that make one version of the dataset.

A manifest file lists the newest shards itself and names the segments that list the others
(``segments.py``), so the cost of a new version does not grow with the list. ``latest_manifest`` and
``read_manifest`` return the whole list.

Owns the JSON form and the chain rule: version v+1 is made from version v, by a publisher whose
ledger's epoch is not below the epoch of v. The ledger decides which shards are committed.
"""

from __future__ import annotations

import builtins
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from llmperf_common.files.foreign_json import parse_json, whole_number
from llmperf_common.ids import sha256_hex
from llmperf_common.schemas import SCHEMA_VERSION, TABLES
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.names import checked_shard_name
from llmperf_common.store.manifests.segments import (
    Replacement,
    Segment,
    Totals,
    add_up,
    lines_of,
    load,
    replacements_of,
)
from llmperf_common.store.manifests.versions import Earlier

_MAX_COUNT = 2**63
_MOST_LOOKS = 8
"""Number of attempts to read the newest version if it is listed but missing; they take 5 s."""
_NAME = re.compile(r"manifest-([0-9]{6,18})\.json")
_LIKE_A_NAME = re.compile(r"manifest.*\.json", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One Parquet file of the dataset, as the manifest lists it.

    ``name`` is the file's path relative to the dataset. ``tasks`` is the number of tasks whose
    results the file holds, 0 in ``devices/``.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    tasks: int

    def __post_init__(self) -> None:
        """Raise ValueError for an entry that LLMPerf would not write, as in a foreign manifest."""
        checked_shard_name(self.name)
        for number in (self.rows, self.bytes, self.tasks):
            if type(number) is not int or not 0 <= number < _MAX_COUNT:
                raise ValueError(
                    f"{self.name}: {ascii(number)[:40]} is not a number of rows, bytes or tasks"
                )
        if not isinstance(self.sha256, str):
            raise TypeError(f"{self.name}: its sha256 is not a text")

    @classmethod
    def of(cls, name: str, data: builtins.bytes, *, rows: int, tasks: int) -> ShardEntry:
        """Return the entry of a shard with the content ``data``."""
        return cls(name=name, rows=rows, bytes=len(data), sha256=sha256_hex(data), tasks=tasks)

    def to_json(self) -> str:
        """Return the entry as one line of a manifest."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @property
    def table(self) -> str:
        """The shard's table: samples, kernels or devices."""
        return self.name.split("/", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One immutable version of the dataset.

    ``replaces`` maps the name of a compacted shard to the names of the shards that it replaces.
    ``dropped`` are shards that a repair has removed. ``epoch`` is that of the publisher's ledger.
    """

    version: int
    plan_hash: str
    epoch: int
    shards: tuple[ShardEntry, ...] = ()
    replaces: tuple[tuple[str, tuple[str, ...]], ...] = ()
    dropped: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    segments: tuple[Segment[ShardEntry], ...] = field(default=(), compare=False, repr=False)
    """The segments that hold the first entries of ``shards`` and ``replaces``, in the same
    order."""
    published_s: int = field(default=0, compare=False)
    """Time of publication in seconds since 1970; 0 if unknown."""
    earlier: Earlier = field(default=(), compare=False, repr=False)
    """The earlier versions that the publisher of this version has kept."""

    @property
    def num_tasks(self) -> int:
        """Number of tasks with a committed result."""
        return self.totals.tasks

    @property
    def totals(self) -> Totals:
        """The totals of all shards; only shards of the tail are added up one by one."""
        return add_up([*(one.totals for one in self.segments), Totals.of(self.tail)])

    @property
    def tail(self) -> tuple[ShardEntry, ...]:
        """The shards that no segment holds."""
        return self.shards[sum(len(one.shards) for one in self.segments) :]

    @property
    def tail_replaces(self) -> tuple[Replacement, ...]:
        """The replacements that no segment holds."""
        return self.replaces[sum(len(one.replaces) for one in self.segments) :]

    @property
    def shard_names(self) -> frozenset[str]:
        """Names of all shards of this version."""
        return frozenset(shard.name for shard in self.shards)

    @property
    def replaced_names(self) -> frozenset[str]:
        """Names of shards that compacted shards replace; they are never listed again."""
        return frozenset(name for _, old in self.replaces for name in old)

    @property
    def barred_names(self) -> frozenset[str]:
        """Shards that are never listed again: replaced ones, and dropped ones except devices."""
        dropped = (name for name in self.dropped if not name.startswith("devices/"))
        return self.replaced_names.union(dropped)

    def lacks(self, name: str) -> bool:
        """Whether this version neither lists nor has replaced a shard; builds no set of all names.

        A device that a repair has dropped counts as lacking, because it may be listed again.
        """
        if any(name in one.names or name in one.replaced for one in self.segments):
            return False
        in_tail = any(entry.name == name for entry in self.tail)
        return not in_tail and not any(name in old for _, old in self.tail_replaces)

    def of_table(self, table: str) -> tuple[ShardEntry, ...]:
        """The shards of one table, in the order they were published."""
        return tuple(shard for shard in self.shards if shard.table == table)

    def with_shards(self, entries: Iterable[ShardEntry], *, epoch: int) -> Manifest:
        """Return the next version with ``entries``, except those listed, replaced or dropped."""
        tail = {entry.name for entry in self.tail}
        tail.update(name for _, old in self.tail_replaces for name in old)
        tail.update(name for name in self.dropped if not name.startswith("devices/"))
        new = {
            entry.name: entry
            for entry in entries
            if entry.name not in tail
            and not any(
                entry.name in one.names or entry.name in one.replaced for one in self.segments
            )
        }
        return replace(self._following(), epoch=epoch, shards=(*self.shards, *new.values()))

    def with_replaced(self, replaced: Mapping[ShardEntry, Sequence[str]]) -> Manifest:
        """Return the next version, in which new shards replace listed ones; the epoch stays.

        Raises:
            ValueError: A shard to be replaced is not listed.
        """
        gone = frozenset(name for old in replaced.values() for name in old)
        if not gone <= self.shard_names:
            raise ValueError(f"not listed: {sorted(gone - self.shard_names)[:3]}")
        kept = tuple(shard for shard in self.shards if shard.name not in gone)
        if not replaced:
            return self._following()
        return replace(
            self._following(),
            shards=(*kept, *replaced),
            replaces=(*self.replaces, *((new.name, tuple(old)) for new, old in replaced.items())),
            segments=(),
        )

    def without(self, names: Collection[str], *, epoch: int) -> Manifest:
        """Return the next version without these shards, so that their tasks are free again."""
        gone = tuple(shard.name for shard in self.shards if shard.name in names)
        return replace(
            self._following(),
            epoch=epoch,
            shards=tuple(shard for shard in self.shards if shard.name not in names),
            dropped=tuple(dict.fromkeys((*self.dropped, *gone))),
            segments=(),
        )

    def _following(self) -> Manifest:
        """Return the next version without any change."""
        before = ((self.version, self.published_s),) if self.version else ()
        return replace(
            self,
            version=self.version + 1,
            published_s=0,
            earlier=(*self.earlier, *before),
            schema_version=SCHEMA_VERSION,
        )

    def to_json(self) -> bytes:
        """Return the bytes of the manifest file."""
        totals = self.totals
        head = {
            "schema_version": self.schema_version,
            "version": self.version,
            "plan_hash": self.plan_hash,
            "epoch": self.epoch,
            "published_s": self.published_s,
            "tasks": totals.tasks,
            "rows": {table: totals.rows_of(table) for table in TABLES},
            "earlier": [list(one) for one in self.earlier],
            "dropped": list(self.dropped),
            "replaces": {name: list(old) for name, old in self.tail_replaces},
            "segments": [one.to_reference() for one in self.segments],
        }
        fields = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
        return ("{\n " + ",\n ".join([*fields, lines_of(self.tail)]) + "\n}\n").encode()


class ManifestError(StoreError):
    """A manifest is damaged, or a newer version of LLMPerf wrote it."""


class NewerManifestError(ManifestError):
    """A manifest is sound, but a newer version of LLMPerf wrote it."""


def manifest_name(version: int) -> str:
    """Return the file name of a version: ``manifest-000007.json``."""
    return f"manifest-{version:06d}.json"


def _no_segments(name: str) -> bytes:
    raise FileNotFoundError(name)


def parse_manifest(
    data: bytes, where: str, read_bytes: Callable[[str], bytes] = _no_segments
) -> Manifest:
    """Read a manifest file.

    Args:
        data: the file's bytes.
        where: the file's name in messages.
        read_bytes: reads a file of the dataset, for the segments that the manifest names.

    Raises:
        ManifestError: The manifest is damaged, or a segment that it names is missing or damaged.
    """
    try:
        document = parse_json(data)
        schema_version = whole_number(document["schema_version"])
        if schema_version > SCHEMA_VERSION:  # first: a later version may have other fields
            raise NewerManifestError(
                f"{where} has schema version {schema_version}, but this LLMPerf reads versions up "
                f"to {SCHEMA_VERSION}: upgrade LLMPerf"
            )
        references = document.get("segments", ())
        if len({str(one["name"]) for one in references}) < len(references):
            # Without this check a manifest of a hundred bytes could list 100,000 shards.
            raise ValueError("it names a segment twice")
        segments = tuple(
            load(one, read_bytes, lambda entry: ShardEntry(**entry)) for one in references
        )
        tail = (ShardEntry(**entry) for entry in document["shards"])
        return Manifest(
            version=whole_number(document["version"]),
            plan_hash=str(document["plan_hash"]),
            epoch=whole_number(document["epoch"]),
            shards=tuple(chain(*(one.shards for one in segments), tail)),
            replaces=tuple(
                chain(*(one.replaces for one in segments), replacements_of(document["replaces"]))
            ),
            dropped=tuple(map(checked_shard_name, document.get("dropped", ()))),
            schema_version=schema_version,
            segments=segments,
            published_s=whole_number(document.get("published_s", 0)),
            earlier=tuple(
                (whole_number(one), whole_number(at_s)) for one, at_s in document.get("earlier", ())
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ManifestError(
            f"{where} is damaged ({type(error).__name__}: {error}). Run `llmperf dataset repair`. "
            "Or move this file away, so that the previous version counts, and run `llmperf "
            "collect` again. Both commands read the shards' footers to find shards that only this "
            "file listed"
        ) from None


def manifest_versions(fs: Filesystem) -> list[int]:
    """Return the versions present, ascending."""
    named = ((name, _NAME.fullmatch(name)) for name in fs.names())
    found = ((name, int(match.group(1))) for name, match in named if match)
    return sorted(version for name, version in found if name == manifest_name(version))


def misnamed_manifests(fs: Filesystem) -> list[str]:
    """Return the files that have a manifest's name but for its number, so that none is read."""
    right = set(map(manifest_name, manifest_versions(fs)))
    return [name for name in fs.names() if _LIKE_A_NAME.fullmatch(name) and name not in right]


def read_manifest(fs: Filesystem, version: int) -> Manifest:
    """Return an existing version. Raises FileNotFoundError, ManifestError."""
    return _of_version(fs, version, fs.read_bytes(manifest_name(version)))


def latest_manifest(fs: Filesystem) -> Manifest | None:
    """Return the current version; None if there is no version.

    Raises:
        StoreError: The version cannot be read, or is listed but missing after all attempts.
    """
    missing: list[int] = []
    while versions := manifest_versions(fs):
        try:
            return _newest_from(fs, versions[-1])
        except FileNotFoundError:  # another process has just removed it: list again
            missing.append(versions[-1])
        num_looks = missing.count(versions[-1])
        if num_looks == _MOST_LOOKS:
            name = fs.describe(manifest_name(versions[-1]))
            raise StoreError(
                f"{name} is listed, but is not there: the store's listings are out of date; wait "
                "a minute and run the same command again"
            )
        if num_looks > 1:
            time.sleep(min(0.05 * 2**num_looks, 1.0))
    return None


def _newest_from(fs: Filesystem, version: int) -> Manifest:
    """Read this version or a newer one.

    Network file systems may list a new file late, but find it by its name at once.
    """
    data = fs.read_bytes(manifest_name(version))
    while True:
        try:
            data = fs.read_bytes(manifest_name(version + 1))
        except FileNotFoundError:
            return _of_version(fs, version, data)
        version += 1


def _of_version(fs: Filesystem, version: int, data: builtins.bytes) -> Manifest:
    """Return the manifest in ``data``, the content of the file of ``version``.

    The manifest must state the same version, because the next version is made from it.
    """
    where = fs.describe(manifest_name(version))
    manifest = parse_manifest(data, where, fs.read_bytes)
    if manifest.version != version:
        raise ManifestError(
            f"{where} is damaged (it says that it is version {manifest.version}). Run `llmperf dataset "
            "repair`, or move this file away, so that the previous version counts"
        )
    return manifest
