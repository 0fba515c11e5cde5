"""Bugs put in on purpose, one a class of mistake: the search must find each of them, every time.

The first three are the issue's; the others were in our code when the simulator first ran, or are what a rewrite is
likely to get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from llmperf_common.ledger import attach as attach_module
from llmperf_common.ledger.agreement import Comparison, unknown_shards
from llmperf_common.ledger.attach import ATTACH_LOCK, LedgerLocation
from llmperf_common.ledger.checked_names import CheckedNames
from llmperf_common.ledger.protocol import CommitOutcome, Committed, Lease, Ledger
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.epochs import latest_epoch, take_next_epoch
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry
from llmperf_common.store.manifests.publish import StaleEpoch
from llmperf_common.store.upkeep import rebuild
from llmperf_common.store.upkeep import sweep as sweep_module
from llmperf_common.store.upkeep.rebuild import Candidate
from llmperf_common.store.upkeep.sweep import SweepReport
from tests.simulation import collector
from tests.simulation.disk import SimFilesystem
from tests.simulation.ledgers import SimLocation
from tests.simulation.setup import NOTHING_PLANTED, Planted
from workers.collect import loop as loop_module
from workers.collect import publishing
from workers.collect.loop import CollectLoop


class LedgerWithoutTokenCheck(SqliteLedger):
    """Commits whatever it is given: a stale holder replaces the result of the one after it."""

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind the tasks without asking who holds them."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO shards VALUES (?, ?, ?, ?, ?, 0)",
                [(s.name, s.rows, s.bytes, s.sha256, s.tasks) for s in shards],
            )
            for lease in leases:
                values = (lease.task, shards[0].name)
                self._db.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", values)
                self._db.execute("DELETE FROM leases WHERE task = ?", (lease.task,))
            return Committed()


class LocationWithoutTokenCheck(SimLocation):
    """Opens ledgers that check no token."""

    ledger_class = LedgerWithoutTokenCheck


class OverwritingFilesystem(SimFilesystem):
    """Publishes without create-if-absent: the slower of two publishers wins."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Overwrite manifests."""
        if name.startswith("manifest-"):
            self.replace(name, data)
            return True
        return super().put_if_absent(name, data)


class ForgetfulFilesystem(SimFilesystem):
    """Does not wait for the disk: what its process wrote just before it died is cut short."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file whose second half is still in memory."""
        created = super().put_if_absent(name, data)
        if created and name.startswith(("kernels/", "samples/")):
            half = data[: len(data) // 2]
            self._scheduler.current.on_crash = lambda: self.disk.put(name, half)
        return created


def adopt_orphans(candidates: Sequence[Candidate], bound: Collection[str]) -> list[Candidate]:
    """Adopt every shard on disk, also where another holder has its tasks."""
    del bound
    return list(candidates)


def adopt_unbound_orphans(
    candidates: Sequence[Candidate], bound: Collection[str]
) -> list[Candidate]:
    """Adopt the first shard of each task that nothing published binds, whatever its token."""
    taken = set(bound)
    adopted = []
    for candidate in candidates:
        tasks = {task for task, _ in candidate.tokens}
        if not tasks & taken:
            adopted.append(candidate)
            taken |= tasks
    return adopted


def attach_trusting_its_lock(
    fs: Filesystem,
    ledger_location: LedgerLocation,
    *,
    plan_hash: str,
    index_of: Callable[[str], int],
    who: str,
) -> Ledger:
    """Attach without asking, at the end, whether a newer epoch was taken: the lock file may be wiped too."""
    with fs.lock(ATTACH_LOCK, exclusive=True, wait=True):
        newest = latest_epoch(fs)
        ledger = ledger_location.open(newest, plan_hash) if newest else None
        if ledger is not None:
            return ledger
        epoch = take_next_epoch(fs, who=who)
        ledger_location.retire(before=epoch)
        manifest = rebuild.rebuild_manifest(fs, plan_hash=plan_hash, epoch=epoch)
        if isinstance(manifest, StaleEpoch):
            raise StoreError("a newer rebuild was faster")
        bound = rebuild.tasks_by_shard(fs, manifest)
        done = [(index_of(task), name) for name, tasks in bound for task in tasks]
        return ledger_location.create(
            epoch=epoch, plan_hash=plan_hash, shards=manifest.shards, done=done
        )


class LocationThatRetiresNothing(SimLocation):
    """Rebuilds beside a ledger that others still use."""

    def retire(self, *, before: int) -> None:
        """Leave the older ledgers alone."""


class LoopThatForgetsWhatItHolds(CollectLoop):
    """Takes a task again while it still runs it."""

    def _drop_superseded(self, leases: Sequence[Lease]) -> None:
        """Do nothing."""


class FilesystemThatFollowsItsName(SimFilesystem):
    """Goes on in whatever folder has the dataset's name: below a mount that went, say."""

    def pin(self, name: str) -> None:
        """Do nothing."""

    def check_place(self) -> None:
        """Do nothing."""


def nothing_absent(fs: Filesystem, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
    """Look at no file."""
    del fs, entries
    return []


def only_what_waits(ledger: Ledger, fs: Filesystem) -> Comparison:
    """Publish what the ledger has not published, and think no more of what it has."""
    del fs
    return Comparison(unknown=(), unlisted=tuple(ledger.unpublished()))


def compare_each_name_once(
    names: CheckedNames,
    ledger: Ledger,
    manifest: Manifest,
    waiting: Sequence[ShardEntry],
    *,
    checked: Manifest | None,
) -> list[str]:
    """Ask only for names that were not asked for before: the ledger may have forgotten the others since."""
    del names, waiting
    return unknown_shards(ledger.unknown, manifest, checked=checked)


_compare_all = CheckedNames.unknown


def compare_what_is_listed(
    names: CheckedNames,
    ledger: Ledger,
    manifest: Manifest,
    waiting: Sequence[ShardEntry],
    *,
    checked: Manifest | None,
) -> list[str]:
    """Trust what the ledger has named a moment before."""
    del waiting
    return _compare_all(names, ledger, manifest, (), checked=checked)


def sweep_by_the_manifest(fs: Filesystem, *, recorded: Collection[str]) -> SweepReport:
    """Take for an orphan whatever the current manifest does not list."""
    del recorded
    return sweep_module.sweep(fs)


PLANTED: dict[str, Planted] = {
    "nothing": NOTHING_PLANTED,
    "commit_without_token_check": Planted(location_class=LocationWithoutTokenCheck),
    "publish_without_create_if_absent": Planted(filesystem_class=OverwritingFilesystem),
    "rebuild_reads_orphans": Planted(replaced=((rebuild, "arbitrate", adopt_orphans),)),
    "rebuild_ignores_tokens": Planted(replaced=((rebuild, "arbitrate", adopt_unbound_orphans),)),
    "sweep_without_run_lock": Planted(sweeps_beside_others=True),
    "shard_not_durable": Planted(filesystem_class=ForgetfulFilesystem),
    "rebuild_before_retiring": Planted(location_class=LocationThatRetiresNothing),
    "attach_trusts_its_lock": Planted(replaced=((collector, "attach", attach_trusting_its_lock),)),
    "loop_takes_its_own_task": Planted(loop_class=LoopThatForgetsWhatItHolds),
    "outdated_ledger_is_trusted": Planted(
        replaced=(
            (attach_module, "_can_be_trusted", lambda *_: True),
            (CheckedNames, "unknown", lambda *_, **__: []),
        )
    ),
    "each_name_is_compared_once": Planted(
        replaced=((CheckedNames, "unknown", compare_each_name_once),)
    ),
    "names_are_compared_without_the_waiting": Planted(
        replaced=((CheckedNames, "unknown", compare_what_is_listed),)
    ),
    "folder_is_what_has_its_name": Planted(
        filesystem_class=FilesystemThatFollowsItsName,
        replaced=(
            (loop_module, "absent_shards", nothing_absent),
            (publishing, "absent_shards", nothing_absent),
        ),
    ),
    "lost_manifests_are_not_missed": Planted(
        replaced=(
            (publishing, "compare", only_what_waits),
            (publishing, "not_listed", lambda *_: []),
            (collector, "sweep", sweep_by_the_manifest),
            (sweep_module, "_listed_in_epoch", lambda *_: frozenset()),
        )
    ),
}
