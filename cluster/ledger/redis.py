"""The ledger of a cluster: one Redis server, shared by the workers of all hosts.

Owns the keys and the scripts (``lua/``). Each method calls one script, which is atomic and takes
one round trip. Times are those of the server's clock. The server keeps the current leases, one bit
for each finished task and one entry for each shard, but never the plan. Redis may forget, so a
ledger ends when its server restarts: the next collector then builds a ledger of the next epoch from
the shards.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import redis  # noqa: TID251
from redis.commands.core import Script  # noqa: TID251

from cluster.ledger.redis_connection import (
    closed_if_refused,
    connect,
    rehearse_rights,
    told_as_ours,
)
from cluster.ledger.redis_errors import LedgerRefusedError
from cluster.ledger.redis_values import about_text, entry_of, entry_text, epochs_of, shown
from llmperf_common.ledger.protocol import (
    SILENT_LIMIT_S,
    CommitOutcome,
    Committed,
    Holder,
    Holding,
    Lease,
    Ledger,
    LedgerAwayError,
    Refused,
    TaskCounts,
    WorkerReport,
)
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.manifests.run import RunRecord

if TYPE_CHECKING:
    _Value = bytes | bytearray | memoryview[int] | str | int | float
    _Fields = dict[_Value, _Value]

_T = TypeVar("_T")
_KEYS = (
    "meta", "expiry", "held", "free", "leases", "cursors", "done", "shards", "unpublished",
    "publisher", "board",
)  # fmt: skip
_STAYING = (("expiry", math.inf), ("held", -1), ("free", -1), ("unpublished", 0))
"""Keys that get a permanent member with an empty name, and the score of this member. No script
returns the member. Redis removes empty keys, and the member keeps the key from becoming empty. So a
missing key shows that the server has lost a part of the ledger."""
RUNS_KEY = "llmperf:runs"
"""The set of datasets that have had a ledger on this server."""
_US = 1_000_000
_BINDING = frozenset({"claim", "commit", "extend"})
"""The scripts that change who holds a task, or mark a task as done."""
_AT_ONCE = 500
"""Maximum number of shards in one call. While a script runs, the server answers no other client, so
each call must be short."""


class RedisLedger:
    """A ``Ledger`` on a Redis server of version 6.2 or newer.

    Args:
        client: connections to the server; the ledger closes them.
        prefix: prefix of the ledger's keys; contains the epoch.
        epoch: the epoch of this ledger.
        clock_offset_us: microseconds that are added to the server's time; tests use this to move
            time.
    """

    def __init__(
        self, client: redis.Redis, *, prefix: str, epoch: int, clock_offset_us: int = 0
    ) -> None:
        self._client = client
        self._keys = [f"{prefix}:{key}" for key in _KEYS]
        self._epoch = epoch
        self._scripts: dict[str, Script] = {}
        self._is_torn = False
        self.clock_offset_us = clock_offset_us

    @property
    def epoch(self) -> int:
        """The epoch this ledger was built in."""
        return self._epoch

    def claim(self, *, holder: Holder, tasks: range, limit: int, ttl_s: float) -> list[Lease]:
        """Lease up to ``limit`` tasks: expired ones first, then in plan order."""
        arguments = (tasks.start, tasks.stop, limit, _us(ttl_s), _name(holder))
        answer = self._run("claim", *arguments)
        return [
            Lease(task=task, epoch=self._epoch, token=token, attempt=attempt)
            for task, token, attempt in zip(*[iter(answer)] * 3, strict=True)
        ]

    def renew(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease]:
        """Extend ``leases``; return those still held."""
        held = set(self._run("extend", _us(ttl_s), *self._tokens(leases)))
        return [lease for lease in leases if lease.epoch == self._epoch and lease.task in held]

    def release(self, leases: Sequence[Lease]) -> None:
        """End leases: their tasks are free at once."""
        self._run("extend", -1, *self._tokens(leases))

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind all tasks of ``leases`` to ``shards`` or, if one token is stale, bind none."""
        tokens = self._tokens(leases)
        name = sha256(repr((self._epoch, tokens)).encode()).hexdigest()[:20]
        entries = [part for entry in shards for part in (entry.name, entry_text(entry, name))]
        stale = self._run("commit", name, len(leases), *tokens, *entries)
        return Refused(tuple(stale)) if stale else Committed()

    def unpublished(self) -> list[ShardEntry]:
        """Return the committed shards that no manifest is known to list."""
        found: list[ShardEntry] = []
        while True:
            after = found[-1].name if found else ""
            answer = self._run("unpublished", after, _AT_ONCE)
            found += self._entries(answer)
            if len(answer) < 2 * _AT_ONCE:
                return found

    def shards(self) -> list[ShardEntry]:
        """Return all shards that were ever recorded here."""
        return sorted(self._entries(self._run("shards")), key=lambda one: one.name)

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` are not names of recorded shards."""
        found = [self._run("unknown", *some) for some in _pieces(names)]
        return [name.decode() for some in found for name in some]

    def check_names(
        self, names: Sequence[str], *, checker: str, number: int, after: int
    ) -> list[str] | None:
        """Return which of ``names`` no recorded shard has; store the number of the check."""
        state, *found = self._run("check_names", checker, number, after, *names)
        return [name.decode() for name in found] if state == b"checked" else None

    def mark_published(self, names: Sequence[str]) -> None:
        """Note that a manifest lists these shards."""
        for some in _pieces(names):
            self._run("mark_published", *some)

    def elect_publisher(self, *, holder: Holder, ttl_s: float) -> bool:
        """Return whether ``holder`` is the publisher for the next ``ttl_s``."""
        return bool(self._run("elect", _name(holder), _us(ttl_s)))

    def counts(self, tasks: range) -> TaskCounts:
        """Count the tasks of a range by state."""
        done, leased = self._run("counts", tasks.start, tasks.stop)
        return TaskCounts(done=done, leased=leased, total=len(tasks))

    def holdings(self, tasks: range) -> list[Holding]:
        """Return the holders of live leases on tasks of a range."""
        answer = self._run("holdings", tasks.start, tasks.stop)
        return [
            Holding(
                holder="/".join(shown(name).split("/")[:2]),
                num_tasks=num_tasks,
                expires_in_s=ends_us / _US,
            )
            for name, num_tasks, ends_us in zip(*[iter(answer)] * 3, strict=True)
        ]

    def report(self, worker: str, document: str) -> None:
        """Store a worker's heartbeat, which replaces its last one."""
        self._run("report", worker, document, _us(SILENT_LIMIT_S))

    def workers(self) -> list[WorkerReport]:
        """Return each worker's last heartbeat."""
        answer = self._run("workers", _us(SILENT_LIMIT_S))
        return sorted(
            (
                WorkerReport(worker=shown(name), age_s=age_us / _US, document=shown(document))
                for name, age_us, document in zip(*[iter(answer)] * 3, strict=True)
            ),
            key=lambda one: one.worker,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _tokens(self, leases: Sequence[Lease]) -> list[int]:
        """Return task, token, task, …; leases of another epoch get token 0, which no lease has."""
        return [
            part
            for lease in leases
            for part in (lease.task, lease.token if lease.epoch == self._epoch else 0)
        ]

    def _entries(self, answer: Sequence[bytes]) -> list[ShardEntry]:
        """Return the shards of an answer of the form shard, entry, shard, entry."""
        with told_as_ours(self._client):
            return [entry_of(name, text) for name, text in zip(*[iter(answer)] * 2, strict=True)]

    def _run(self, script: str, *arguments: str | int) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._client.register_script(_source(script))
        self._end_if_torn()
        try:
            with told_as_ours(self._client):
                return self._scripts[script](
                    keys=self._keys, args=[self._epoch, self.clock_offset_us, *arguments]
                )
        except LedgerRefusedError as error:
            self._is_torn = error.is_amid_script and script in _BINDING
            with contextlib.suppress(LedgerAwayError):
                self._end_if_torn()
            raise

    def _end_if_torn(self) -> None:
        """End the ledger if a script stopped halfway: a retry could report success wrongly."""
        if self._is_torn:
            with told_as_ours(self._client):
                self._client.delete(self._keys[0])
            self._is_torn = False


class RedisLocation:
    """A Redis server with the ledgers of a dataset, one for each epoch.

    Args:
        client: connections to the server; the ledgers opened here close them.
        dataset: a name that all workers of the dataset use, and no worker of another dataset on
            this server.
        about: a JSON document about the run, for viewers of the server (``redis_runs.py``).
    """

    def __init__(self, client: redis.Redis, *, dataset: str, about: str = "{}") -> None:
        self._client = client
        self._dataset = dataset
        self._about = about
        # The braces make a cluster of Redis servers keep all keys of a dataset on one server.
        self._prefix = f"llmperf:{{{dataset}}}"

    def key(self, name: str) -> str:
        """Return a key of the dataset that does not depend on the epoch."""
        return f"{self._prefix}:{name}"

    def open(self, epoch: int, plan_hash: str) -> Ledger | None:
        """Open the ledger of ``epoch``; None if it is gone, stale, or of another plan."""
        with told_as_ours(self._client):
            found = self._client.hmget(f"{self._of(epoch)}:meta", ["epoch", "plan_hash", "run_id"])
            wanted = [str(epoch), plan_hash, self._run_id()]
        if found != [text.encode() for text in wanted]:
            return None
        return RedisLedger(self._client, prefix=self._of(epoch), epoch=epoch)

    def epochs(self) -> list[int]:
        """Return the epochs that may have a ledger here, the newest first."""
        with told_as_ours(self._client):
            return epochs_of(self._client.smembers(self.key("epochs")))

    def retire(self, *, before: int) -> None:
        """Remove older epochs' ledgers; collectors that still use them get ``LedgerLostError``."""
        for epoch in self.epochs():
            if epoch < before:
                self._remove(epoch)

    def create(
        self,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> Ledger:
        """Create the ledger of ``epoch`` and open it; it is valid once ``meta`` is written."""
        prefix = self._of(epoch)
        with told_as_ours(self._client):
            run_id = (
                self._run_id()
            )  # read first, so that a restart of the server from here on makes this ledger invalid
            # Done first: if this process dies soon, no other one announces the ledger.
            self._announce(epoch)
            self._client.delete(*(f"{prefix}:{key}" for key in _KEYS))
            for key, score in _STAYING:
                self._client.zadd(f"{prefix}:{key}", {"": score})
            for key in ("leases", "shards"):
                self._client.hset(f"{prefix}:{key}", "", "")
            for some in _pieces(shards):
                texts: _Fields = {entry.name: entry_text(entry, "") for entry in some}
                self._client.hset(f"{prefix}:shards", mapping=texts)
            bits = bytearray()
            for task, _ in done:
                bits.extend(bytes(max(0, task // 8 + 1 - len(bits))))
                bits[task // 8] |= 0x80 >> task % 8
            self._client.set(
                f"{prefix}:done", bytes(bits) or bytes(1)
            )  # at least one byte, because lua/prelude.lua checks that the key exists
            meta: _Fields = {"plan_hash": plan_hash, "run_id": run_id, "last_token": 0}
            self._client.hset(f"{prefix}:meta", mapping={**meta, "epoch": epoch})
            self._announce(epoch)  # again, because the server may have been wiped meanwhile
        return RedisLedger(self._client, prefix=prefix, epoch=epoch)

    def _announce(self, epoch: int) -> None:
        """Note that there is a ledger of ``epoch``, for ``retire`` and for viewers of the server."""
        self._client.sadd(self.key("epochs"), epoch)
        self._client.set(self.key("about"), self._about)
        self._client.sadd(RUNS_KEY, self._dataset)

    def _remove(self, epoch: int) -> None:
        prefix = self._of(epoch)
        with told_as_ours(self._client):
            self._client.delete(f"{prefix}:meta")  # without this key the ledger refuses commits
            self._client.unlink(*(f"{prefix}:{key}" for key in _KEYS))
            self._client.srem(self.key("epochs"), epoch)

    def _of(self, epoch: int) -> str:
        return f"{self._prefix}:e{epoch:06d}"

    def _run_id(self) -> str:
        return str(self._client.info("server")["run_id"])


def redis_locations(url: str, location: str) -> Callable[[RunRecord], RedisLocation]:
    """Return a function that gives the location of a run's ledgers on the server at ``url``.

    Args:
        url: URL of the server, as ``connect`` takes it.
        location: the dataset's name, as its workers use it.

    Raises:
        LedgerUrlError: The URL is invalid, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses to serve us.
    """
    client = connect(url)
    with closed_if_refused(client):
        rehearse_rights(client)
    return lambda run: RedisLocation(
        client, dataset=run.run_id or run.plan_hash, about=about_text(run, location)
    )


@cache
def _source(name: str) -> str:
    folder = resources.files("cluster.ledger") / "lua"
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()


def _pieces(items: Iterable[_T]) -> Iterator[list[_T]]:
    waiting = iter(items)
    while piece := list(islice(waiting, _AT_ONCE)):
        yield piece


def _us(seconds: float) -> int:
    return round(seconds * _US)


def _name(holder: Holder) -> str:
    return f"{holder.host}/{holder.pid}/{holder.boot_id}/{holder.start_ticks}"
