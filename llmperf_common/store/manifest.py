"""Manifests: the list of shards that make one version of the dataset.

Owns their JSON form and the chain rule: version v+1 is made from version v, by a publisher whose epoch is
not below that of v. Does not own which shards are committed: the ledger says that.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmperf_common.foreign_json import parse_json
from llmperf_common.ids import sha256_hex
from llmperf_common.schemas import SCHEMA_VERSION, TABLES
from llmperf_common.store.filesystem import Filesystem, StoreError
from llmperf_common.store.names import checked_shard_name

_MAX_COUNT = 2**63
_NAME = re.compile(r"manifest-(\d{6,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One Parquet file of the dataset, as the manifest lists it.

    ``name`` is its path relative to the dataset, ``tasks`` how many tasks it holds results of (0 in
    ``devices/``).
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    tasks: int

    def __post_init__(self) -> None:
        """Raise ValueError for what no shard of ours is: names and numbers come from others, too."""
        checked_shard_name(self.name)
        for number in (self.rows, self.bytes, self.tasks):
            if type(number) is not int or not 0 <= number < _MAX_COUNT:
                raise ValueError(
                    f"{self.name}: {ascii(number)[:40]} is no number of rows, bytes or tasks"
                )
        if not isinstance(self.sha256, str):
            raise TypeError(f"{self.name}: its sha256 is no text")

    @classmethod
    def of(cls, name: str, data: builtins.bytes, *, rows: int, tasks: int) -> ShardEntry:
        """Return the entry of a shard with these bytes."""
        return cls(name=name, rows=rows, bytes=len(data), sha256=sha256_hex(data), tasks=tasks)

    def to_json(self) -> str:
        """Return the entry as one line of a manifest."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @property
    def table(self) -> str:
        """The table it belongs to: samples, kernels or devices."""
        return self.name.split("/", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One immutable version of the dataset.

    ``replaces`` maps the name of a compacted shard to the names it stands for. ``epoch`` is the publisher's.
    """

    version: int
    plan_hash: str
    epoch: int
    shards: tuple[ShardEntry, ...] = ()
    replaces: tuple[tuple[str, tuple[str, ...]], ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def num_tasks(self) -> int:
        """Tasks with a committed result."""
        return sum(shard.tasks for shard in self.shards if shard.table == "kernels")

    @property
    def shard_names(self) -> frozenset[str]:
        """Names of all shards of this version."""
        return frozenset(shard.name for shard in self.shards)

    @property
    def replaced_names(self) -> frozenset[str]:
        """Names of the shards that compacted ones stand for: never to be listed again."""
        return frozenset(name for _, old in self.replaces for name in old)

    def of_table(self, table: str) -> tuple[ShardEntry, ...]:
        """The shards of one table, in the order they were published."""
        return tuple(shard for shard in self.shards if shard.table == table)

    def with_shards(self, entries: Iterable[ShardEntry], *, epoch: int) -> Manifest:
        """Return the next version with ``entries`` added (those listed or compacted are left out)."""
        known = self.shard_names | self.replaced_names
        new = {entry.name: entry for entry in entries if entry.name not in known}
        return replace(
            self, version=self.version + 1, epoch=epoch, shards=(*self.shards, *new.values())
        )

    def with_replaced(self, replaced: Mapping[ShardEntry, Sequence[str]]) -> Manifest:
        """Return the next version, in which each new shard stands for listed ones; its publisher's epoch stays.

        Raises:
            ValueError: A shard to be replaced is not listed.
        """
        gone = frozenset(name for old in replaced.values() for name in old)
        if not gone <= self.shard_names:
            raise ValueError(f"not listed: {sorted(gone - self.shard_names)[:3]}")
        kept = tuple(shard for shard in self.shards if shard.name not in gone)
        return replace(
            self,
            version=self.version + 1,
            shards=(*kept, *replaced),
            replaces=(*self.replaces, *((new.name, tuple(old)) for new, old in replaced.items())),
            schema_version=SCHEMA_VERSION,
        )

    def to_json(self) -> bytes:
        """Return the bytes of the manifest file."""
        head = {
            "schema_version": self.schema_version,
            "version": self.version,
            "plan_hash": self.plan_hash,
            "epoch": self.epoch,
            "tasks": self.num_tasks,
            "rows": {table: sum(shard.rows for shard in self.of_table(table)) for table in TABLES},
            "replaces": {name: list(old) for name, old in self.replaces},
        }
        # A line a shard: readable, and json's fast encoder (it has none for indented text).
        shards = ",\n  ".join(shard.to_json() for shard in self.shards)
        fields = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
        fields.append(f'"shards": [\n  {shards}\n ]' if shards else '"shards": []')
        return ("{\n " + ",\n ".join(fields) + "\n}\n").encode()


class ManifestError(StoreError):
    """A manifest is damaged or from a newer version of LLMPerf."""


def manifest_name(version: int) -> str:
    """Return the file name of a version: ``manifest-000007.json``."""
    return f"manifest-{version:06d}.json"


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest file. Raises ManifestError naming ``where``."""
    try:
        document = parse_json(data)
        schema_version = int(document["schema_version"])
        if schema_version > SCHEMA_VERSION:  # first: its other fields may be unknown to us
            raise ManifestError(
                f"{where} has schema version {schema_version}, this LLMPerf reads up to "
                f"{SCHEMA_VERSION}: upgrade LLMPerf"
            )
        shards = tuple(ShardEntry(**entry) for entry in document["shards"])
        return Manifest(
            version=int(document["version"]),
            plan_hash=str(document["plan_hash"]),
            epoch=int(document["epoch"]),
            shards=shards,
            replaces=tuple(
                (checked_shard_name(name), tuple(map(checked_shard_name, old)))
                for name, old in document["replaces"].items()
            ),
            schema_version=schema_version,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ManifestError(
            f"{where} is damaged ({type(error).__name__}: {error}); move it away to fall back to the version "
            "before it, then run `llmperf collect` again: shards on disk are found by their footers"
        ) from None


def manifest_versions(fs: Filesystem) -> list[int]:
    """Return the versions present, ascending."""
    found = (_NAME.fullmatch(name) for name in fs.names())
    return sorted(int(match.group(1)) for match in found if match)


def latest_manifest(fs: Filesystem) -> Manifest | None:
    """Return the current version, None before the first."""
    while versions := manifest_versions(fs):
        with contextlib.suppress(FileNotFoundError):  # somebody has just removed it: look again
            return _newest_from(fs, versions[-1])
    return None


def _newest_from(fs: Filesystem, version: int) -> Manifest:
    """Read this version, or a newer one: a network file system may list what was there a minute ago, a name that is asked for is looked up."""
    data = fs.read_bytes(manifest_name(version))
    while True:
        try:
            data = fs.read_bytes(manifest_name(version + 1))
        except FileNotFoundError:
            return _of_version(version, data, fs.describe(manifest_name(version)))
        version += 1


def _of_version(version: int, data: builtins.bytes, where: str) -> Manifest:
    """Return the manifest, whose version is that of its name: the next one is made from it."""
    manifest = parse_manifest(data, where)
    if manifest.version != version:
        raise ManifestError(
            f"{where} is damaged (it says that it is version {manifest.version}); move it away to fall back to the "
            "version before it"
        )
    return manifest


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """A newer epoch has published: this publisher's ledger was replaced and it must attach again."""

    current_epoch: int


def publish(
    fs: Filesystem,
    entries: Sequence[ShardEntry],
    *,
    plan_hash: str,
    epoch: int,
    admit: Callable[[Manifest], Sequence[ShardEntry]] = lambda _base: (),
) -> Manifest | StaleEpoch:
    """Make ``entries`` part of the current version, whoever else publishes meanwhile.

    Create-if-absent decides between publishers; the loser re-reads and merges. Because each version is made
    from the one before it and never lowers the epoch, a publisher whose ledger was rebuilt elsewhere is
    refused from the moment the rebuild has published.

    Args:
        fs: the dataset.
        entries: committed shards.
        plan_hash: of the run.
        epoch: of the ledger that has committed them.
        admit: is asked for each version that the next one would be made from: raises where the ledger and that
            version differ, and returns what else it should have listed.

    Raises:
        StoreError: The folder holds another plan's dataset.
    """
    while True:
        base = latest_manifest(fs)
        if base is None:
            base = Manifest(version=0, plan_hash=plan_hash, epoch=epoch)
        if base.plan_hash != plan_hash:
            raise StoreError(f"{fs.describe()} belongs to another plan ({base.plan_hash})")
        if base.epoch > epoch:
            return StaleEpoch(base.epoch)
        new = base.with_shards([*entries, *admit(base)], epoch=epoch)
        if base.version > 0 and base.epoch == epoch and new.shards == base.shards:
            return base
        if fs.put_if_absent(manifest_name(new.version), new.to_json()):
            return new
