"""Open a dataset's ledger, or rebuild it from the shards if it is lost or was rolled back.

Owns the order of steps that makes a rebuild safe: take the next epoch; retire the ledgers of older
epochs (they accept no more commits, and the shards of all earlier commits are on disk); publish a
manifest of the new epoch (older epochs can no longer publish); then create the new ledger. Each
process that has opened or created a ledger then checks whether a newer epoch was taken meanwhile.
Safety does not depend on the attach lock, whose file may be deleted with the ledger: the lock only
saves work. Also owns the location of the SQLite file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from llmperf_common.ids import sha256_hex
from llmperf_common.ledger.agreement import absent_shards, compare, has_forgotten, refuse_doubled
from llmperf_common.ledger.foreign_ledger import has_own_values
from llmperf_common.ledger.holder import boot_clock_s, is_alive
from llmperf_common.ledger.protocol import Holder, Ledger, LedgerLostError
from llmperf_common.ledger.sqlite import SqliteLedger, is_ledger
from llmperf_common.ledger.sqlite_errors import away, translated
from llmperf_common.ledger.sqlite_files import log_and_index, may_be_opened, remove_beside
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.epochs import check_epoch, latest_epoch, take_next_epoch
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest
from llmperf_common.store.manifests.publish import StaleEpoch
from llmperf_common.store.upkeep.rebuild import rebuild_manifest, tasks_by_shard

_MOST_BYTES = 180
"""Maximum number of bytes of a dataset's path that the name of its ledger's folder repeats."""
_log = logging.getLogger(__name__)

ATTACH_LOCK = "ledger/.attach.lock"
_BUSY_TIMEOUT_S = 60.0
_EPOCH_OF_FILE = re.compile(r"(?:ledger-|\.tmp-\d+-)(\d+)\.sqlite")
_NETWORK_FILESYSTEMS = re.compile(
    r"nfs|cifs|smb|fuse($|\.)|lustre|ceph|beegfs|gpfs|9p|afs|virtiofs|gfs2|ocfs2|panfs|wekafs|"
    r"orangefs|pvfs2|glusterfs|davfs|vboxsf|prl_fs|drvfs"
)
_OCTAL = re.compile(rb"\\([0-7]{3})")


class LedgerLocation(Protocol):
    """The place of a dataset's ledgers, one for each epoch."""

    def open(self, epoch: int, plan_hash: str) -> Ledger | None:
        """Open the ledger of ``epoch``; None if it is gone, damaged or of another plan.

        Raises:
            LedgerAwayError: It cannot be reached now, so it may exist or not.
        """
        ...

    def retire(self, *, before: int) -> None:
        """End all ledgers of epochs below ``before``; their users get ``LedgerLostError``."""
        ...

    def create(
        self,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> Ledger:
        """Create the ledger of ``epoch`` and open it."""
        ...


def attach(
    fs: Filesystem,
    ledger_location: LedgerLocation,
    *,
    plan_hash: str,
    index_of: Callable[[str], int],
    who: str,
) -> Ledger:
    """Return the dataset's ledger; rebuild it if it is missing or knows less than the manifests.

    Args:
        fs: the dataset.
        ledger_location: the place of the dataset's ledgers.
        plan_hash: hash of the plan that numbers the tasks.
        index_of: returns a task id's index in the plan.
        who: name of this process, which the epoch's record stores.

    Raises:
        StoreLostError: The dataset's folder is gone.
        StoreError: The manifest's epoch is so high that no ledger can follow.
    """
    fs.check_place()  # before anything is created
    with fs.lock(ATTACH_LOCK, exclusive=True, wait=True):
        while True:
            fs.check_place()
            current = latest_manifest(fs)
            check_epoch(fs, current.epoch if current else 0)
            epoch = latest_epoch(fs)
            ledger = ledger_location.open(epoch, plan_hash) if epoch else None
            if ledger is not None and not _can_be_trusted(ledger, fs):
                ledger.close()
                if latest_epoch(fs) != epoch:
                    continue  # another process has taken a newer epoch and retired this ledger
                ledger = None
            if ledger is None:
                current = latest_manifest(fs)
                epoch = take_next_epoch(fs, who=who, after=current.epoch if current else 0)
                ledger = _rebuilt(
                    fs, ledger_location, plan_hash=plan_hash, index_of=index_of, epoch=epoch
                )
            if ledger is None:
                continue
            # If another process took a newer epoch before ours existed, it could not retire our
            # ledger: give ours up. A process that takes an epoch after this check retires ours.
            if latest_epoch(fs) == epoch:
                return ledger
            ledger.close()


def _can_be_trusted(ledger: Ledger, fs: Filesystem) -> bool:
    """Whether a ledger knows all shards of the manifest, and all its other shards are on disk.

    If not, the ledger was rolled back or files were lost. The rebuilt ledger then leases again the
    tasks that have no shard on disk.
    """
    try:
        found = compare(ledger, fs)
        manifest = latest_manifest(fs)
        forgets = manifest is not None and has_forgotten(ledger, manifest)
    except LedgerLostError:
        return False
    why = "it was rolled back: it counts fewer tasks than the manifest's shards hold" * forgets
    if found.unknown:
        why = f"it was rolled back: it lacks {found.unknown[0]}, which the manifest lists"
    elif manifest is not None and manifest.epoch > ledger.epoch:
        why = f"the manifest is of epoch {manifest.epoch}, so this ledger can publish nothing"
    elif absent := absent_shards(fs, found.unlisted):
        why = f"{fs.describe(absent[0].name)} was committed and is gone"
    elif found.num_without_shard:
        why = f"it lists {found.num_without_shard} tasks as finished that no shard holds"
    if why:
        _log.warning("the ledger of epoch %d is rebuilt from the shards: %s", ledger.epoch, why)
    return not why


def _rebuilt(
    fs: Filesystem,
    ledger_location: LedgerLocation,
    *,
    plan_hash: str,
    index_of: Callable[[str], int],
    epoch: int,
) -> Ledger | None:
    """Build the ledger of ``epoch`` from the shards; None if a newer epoch has published first."""
    # Retire older ledgers first: other processes may still use one that we cannot read. If they
    # committed to it after we have listed the shards, their commits would be lost.
    ledger_location.retire(before=epoch)
    bound: dict[str, array[int]] = {}  # indices take less memory than ids of millions of tasks

    def note(name: str, tasks: Sequence[str]) -> None:
        bound[name] = array("q", map(index_of, tasks))

    manifest = rebuild_manifest(fs, plan_hash=plan_hash, epoch=epoch, note=note)
    if isinstance(manifest, StaleEpoch):
        return None
    for name, tasks in tasks_by_shard(fs, manifest, but=bound):
        note(name, tasks)
    refuse_doubled(fs, bound)
    done = ((task, name) for name, indices in bound.items() for task in indices)
    return ledger_location.create(
        epoch=epoch, plan_hash=plan_hash, shards=manifest.shards, done=done
    )


class SqliteLocation:
    """A folder with one SQLite file per epoch, such as ``ledger-000003.sqlite``.

    If a new database replaced the old one under the same name, SQLite could apply the write-ahead
    log of the old one to the new one. So each epoch has a file of its own.

    Args:
        folder: the ledgers' folder; created if missing.
        is_in_dataset: whether the folder's parent is the dataset, which must not be created.
    """

    def __init__(self, folder: Path, *, is_in_dataset: bool = False) -> None:
        self.folder = folder
        self._is_in_dataset = is_in_dataset

    def open(self, epoch: int, plan_hash: str) -> Ledger | None:
        """Open the ledger of ``epoch``; None if it is gone, damaged or of another plan.

        Raises:
            LedgerAwayError: The disk fails. The ledger may be intact, and others may use it.
            StoreError: The disk is full.
        """
        path = self._path(epoch)
        where = f"the ledger {path}"
        with contextlib.ExitStack() as stack:
            try:
                path.lstat()  # raises if the folder cannot be read
                if not may_be_opened(path):
                    return None
                with translated(where=where, is_current=path.exists):
                    connection = sqlite3.connect(
                        path, isolation_level=None, timeout=_BUSY_TIMEOUT_S
                    )
                    stack.callback(connection.close)
                    ledger = self._intact(connection, path)
                    if ledger and (ledger.epoch, ledger.plan_hash) == (epoch, plan_hash):
                        stack.pop_all()
                        return ledger
            except (FileNotFoundError, NotADirectoryError):
                pass  # the file is gone, perhaps only since a moment ago
            except OSError as error:
                raise away(error, where=where) from error
            except (LedgerLostError, sqlite3.DatabaseError, TypeError, ValueError, ArithmeticError):
                pass  # the file is damaged, lacks tables, or has other values than a ledger
        return None

    def _intact(self, connection: sqlite3.Connection, path: Path) -> SqliteLedger | None:
        connection.execute("PRAGMA trusted_schema = OFF")
        if not is_ledger(connection):
            return None
        self._configure(connection)
        is_intact = connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
        return self._ledger(connection, path) if is_intact and has_own_values(connection) else None

    def retire(self, *, before: int) -> None:
        """Remove the files of older epochs, and unfinished files from crashes.

        Raises:
            StoreError: One of them cannot be removed.
        """
        for old in (*self.folder.glob("ledger-*.sqlite*"), *self.folder.glob(".tmp-*")):
            match = _EPOCH_OF_FILE.match(old.name)
            if match is None or int(match.group(1)) < before:
                try:
                    old.unlink(missing_ok=True)
                except OSError as error:
                    raise StoreError(
                        f"cannot remove {old}, the ledger of an earlier epoch: {error}: nothing "
                        "committed is lost; make it removable and run the same command again"
                    ) from error

    def create(
        self,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> Ledger:
        """Create and open the ledger of ``epoch``; no other collector creates this epoch's ledger."""
        unfinished = self.folder / f".tmp-{os.getpid()}-{epoch}.sqlite"
        path = self._path(epoch)
        try:
            self.folder.mkdir(parents=not self._is_in_dataset, exist_ok=True)
            unfinished.unlink(missing_ok=True)
            remove_beside(unfinished)
            self._build(unfinished, epoch=epoch, plan_hash=plan_hash, shards=shards, done=done)
            remove_beside(path)
            os.replace(unfinished, path)
            connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
            self._configure(connection)
            return self._ledger(connection, path)
        except (sqlite3.DatabaseError, OSError) as error:
            raise StoreError(
                f"cannot create the ledger {path}: {error}: nothing committed is lost; check free "
                "space, your quota, your permissions and the limit of file sizes (`ulimit -f`) "
                "there, and run the same command again"
            ) from error

    @staticmethod
    def _build(
        path: Path,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            SqliteLedger.create(
                connection, epoch=epoch, plan_hash=plan_hash, shards=shards, done=done
            )
            # Here, because this step uses a rollback journal, and ``open`` refuses a ledger with one.
            connection.execute("PRAGMA journal_mode = WAL")

    def _path(self, epoch: int) -> Path:
        return self.folder / f"ledger-{epoch:06d}.sqlite"

    @staticmethod
    def _configure(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @staticmethod
    def _ledger(connection: sqlite3.Connection, path: Path) -> SqliteLedger:
        main = path.stat().st_ino
        sides = log_and_index(path)
        logs: list[int | None] = []

        def is_current() -> bool:
            if _inode(path) != main:
                return False
            found = [_inode(side) for side in sides]
            if not logs and None not in found:
                logs.extend(found)
            if not logs or found == logs:
                return True
            # The write-ahead log was removed or replaced. A process that opens the file now sees an
            # old state without our changes, and the two states differ. So remove the file: the next
            # epoch is built from the shards.
            path.unlink(missing_ok=True)
            return False

        ledger = SqliteLedger(
            connection,
            clock_s=boot_clock_s,
            is_alive=is_alive,
            is_current=is_current,
            where=f"the ledger {path}",
        )
        is_current()  # stores the log's inode; the log exists, because the ledger was read
        return ledger


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def ledger_folder(dataset: Path, state_folder: Path) -> Path:
    """Return the folder for the SQLite ledger of ``dataset``.

    The folder is in the dataset, unless the dataset lies on a network file system, where SQLite's
    locks cannot be trusted. In that case it is a folder of ``state_folder``, named after the
    dataset's path. A hash of the path distinguishes ``/x/p-q`` from ``/x/p/q``.
    """
    if not is_network_filesystem(dataset):
        return dataset / "ledger"
    path = str(dataset.resolve())
    digest = sha256_hex(os.fsencode(path))[:8]
    readable = os.fsencode(path.strip("/").replace("/", "-"))[-_MOST_BYTES:]
    return state_folder / f"{os.fsdecode(readable)}-{digest}"


def is_network_filesystem(path: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    """Return whether the deepest mount above ``path`` is a network file system."""
    target = path.resolve()
    deepest, kind = "", ""
    try:
        lines = os.fsdecode(mounts.read_bytes()).splitlines()
    except OSError:
        return False
    for line in lines:
        _, mount_point, filesystem, *_ = line.split(" ")
        # Blanks and some other characters are written as three octal digits.
        raw = _OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), os.fsencode(mount_point))
        mount_point = os.fsdecode(raw)
        if target.is_relative_to(mount_point) and len(mount_point) >= len(deepest):
            deepest, kind = mount_point, filesystem
    return _NETWORK_FILESYSTEMS.match(kind) is not None


def process_name(holder: Holder) -> str:
    """Return ``host/pid``, the ``worker_id`` of a collector."""
    return f"{holder.host}/{holder.pid}"
