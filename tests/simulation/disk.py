"""The disk of a simulated host: files, lock files and ledger databases, and one process's view of the files.

Owns the semantics promised by ``store/files/filesystem.py``: a file appears whole or not at all, a killed writer leaves a
temporary file, the operating system drops a dead process's locks.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar

from llmperf_common.store.files.filesystem import TEMPORARY_PREFIX, StoreError, StoreLostError
from tests.simulation.scheduler import Crash, FileLock, Scheduler


class Databases:
    """In-memory databases for one schedule; used again by the next one with their tables emptied.

    SQLite compiles each statement once a connection, which costs more than running it.
    """

    _idle: ClassVar[list[sqlite3.Connection]] = []

    def __init__(self) -> None:
        self._used: list[sqlite3.Connection] = []

    def take(self) -> sqlite3.Connection:
        """Return an empty database, with or without tables."""
        database = (
            self._idle.pop() if self._idle else sqlite3.connect(":memory:", isolation_level=None)
        )
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            database.execute(f"DELETE FROM {table}")
        self._used.append(database)
        return database

    def give_back(self) -> None:
        """Let the next schedule use them."""
        self._idle.extend(self._used)
        self._used.clear()


class Disk:
    """What outlives processes.

    ``written`` and ``removed`` are called for every change, at the moment it happens.
    """

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, bytes]] = {}
        self.locks: dict[str, FileLock] = {}
        self.databases = Databases()
        self.ledgers: dict[int, sqlite3.Connection] = {}
        self.ledger_states: dict[int, list[bytes]] = {}
        """All that each epoch's ledger has ever been."""
        self.ledger_is_unreadable = False
        self.coverage: Counter[str] = Counter()
        self.written: Callable[[str, bytes], None] = lambda name, data: None
        self.removed: Callable[[str], None] = lambda name: None

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file."""
        folder, base = _split(name)
        return self.folders.get(folder, {}).get(base)

    def put(self, name: str, data: bytes) -> None:
        """Create or overwrite a file."""
        folder, base = _split(name)
        self.folders.setdefault(folder, {})[base] = data
        self.written(name, data)

    def remove(self, name: str) -> None:
        """Remove a file that is there."""
        folder, base = _split(name)
        if self.folders.get(folder, {}).pop(base, None) is not None:
            self.removed(name)

    def keep_state(self, epoch: int, database: sqlite3.Connection) -> None:
        """Remember what an epoch's ledger is now, if it is the one in place."""
        if self.ledgers.get(epoch) is database:
            self.ledger_states.setdefault(epoch, []).append(database.serialize())

    def roll_back(self, share: float) -> int | None:
        """Put an earlier state of the newest ledger in its place, as another file; return its epoch, None without one.

        Args:
            share: of its life that is kept, from 0 to below 1.
        """
        epoch = self._newest_with_states()
        if epoch is not None:
            database = self.databases.take()
            database.deserialize(self._earlier_state(epoch, share))
            self.ledgers[epoch] = database
        return epoch

    def restore(self, share: float) -> int | None:
        """Put an earlier state into the newest ledger itself, which its users do not notice; return its epoch."""
        epoch = self._newest_with_states()
        if epoch is not None:
            self.ledgers[epoch].deserialize(self._earlier_state(epoch, share))
        return epoch

    def _newest_with_states(self) -> int | None:
        epoch = max(self.ledgers, default=None)
        return epoch if epoch in self.ledger_states else None

    def _earlier_state(self, epoch: int, share: float) -> bytes:
        states = self.ledger_states[epoch]
        del states[int(share * len(states)) + 1 :]
        return states[-1]

    def lock(self, name: str) -> FileLock:
        """Return the lock file of this name, made when missing."""
        return self.locks.setdefault(name, FileLock(name))

    def wipe_ledger(self) -> None:
        """Remove ``ledger/`` and everything in it; who has a file open keeps using it unseen by others."""
        self.ledgers.clear()
        for name in [name for name in self.locks if name.startswith("ledger/")]:
            del self.locks[name]


class SimFilesystem:
    """A ``Filesystem`` on a Disk; every operation is a point of the schedule."""

    def __init__(self, disk: Disk, scheduler: Scheduler) -> None:
        self._disk = disk
        self._below = Disk()
        self._is_pinned = False
        self._scheduler = scheduler

    @property
    def disk(self) -> Disk:
        """What the dataset's name leads to; what was pinned is held open."""
        if self._scheduler.current.has_lost_folder and not self._is_pinned:
            return self._below
        return self._disk

    def describe(self, name: str = "") -> str:
        """Return the full name of a file."""
        return f"sim:/{name}"

    def read_bytes(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        self._scheduler.point(f"read {name}")
        self._scheduler.current.touched.add(name)
        data = self.disk.get(name)
        if data is None:
            raise FileNotFoundError(name)
        return data

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file whole, or nothing; a crash here leaves a temporary file now and then."""
        self._before_write(f"create {name}", name, data)
        if self.disk.get(name) is not None:
            self.disk.coverage["lost the race for a file"] += 1
            return False
        self.disk.put(name, data)
        if name.startswith("manifest-"):
            self._scheduler.current.touched.clear()
        else:
            self._scheduler.current.touched.add(name)
        return True

    def pin(self, name: str) -> None:
        """From here on the folder is held open."""
        if self.disk.get(name) is None:
            raise StoreLostError("simulated")
        self._is_pinned = True

    def check_place(self) -> None:
        """Raise StoreLostError where the folder is another one."""
        self._scheduler.point("look where the folder is")
        if self._is_pinned and self._scheduler.current.has_lost_folder:
            self._disk.coverage["found its folder gone"] += 1
            raise StoreLostError("simulated")

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Return how long files are."""
        self._scheduler.point(f"look at {len(names)} files")
        self._scheduler.current.touched.update(names)
        found = {name: self.disk.get(name) for name in names}
        return {name: None if data is None else len(data) for name, data in found.items()}

    def same_files(self, names: Collection[str], kept: Collection[str]) -> frozenset[str]:
        """Return nothing: there are no links here."""
        del names, kept
        return frozenset()

    def move(self, name: str, new_name: str) -> None:
        """Give a file another name."""
        self._scheduler.point(f"move {name} to {new_name}")
        data = self.disk.get(name)
        if data is not None:
            self.disk.put(new_name, data)
            self.disk.remove(name)

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite a file atomically."""
        self._before_write(f"replace {name}", name, data)
        self.disk.put(name, data)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files in a folder."""
        self._scheduler.point(f"list {folder or '/'}")
        return sorted(self.disk.folders.get(folder, {}))

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._scheduler.point(f"remove {name}")
        self.disk.remove(name)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock file."""
        self._scheduler.point(f"look at lock {name}")
        return not self.disk.lock(name).is_free(True)

    @contextlib.contextmanager
    def lock(self, name: str, *, exclusive: bool, wait: bool) -> Iterator[bool]:
        """Hold a lock file; dropped at the end of the ``with``, also by death."""
        self._scheduler.point(f"lock {name} {'exclusive' if exclusive else 'shared'}")
        file = self.disk.lock(name)
        process = self._scheduler.current
        if not wait and not file.is_free(exclusive):
            yield False
            return
        self._scheduler.wait_for(file, exclusive=exclusive)
        try:
            yield True
        finally:
            file.holders.pop(process.number, None)

    def _before_write(self, operation: str, name: str, data: bytes) -> None:
        process = self._scheduler.current
        try:
            self._scheduler.point(operation)
        except Crash:
            if self._scheduler.num_points % 2:
                folder, _ = _split(name)
                temporary = f"{TEMPORARY_PREFIX}{process.number}-{self._scheduler.num_points}"
                self.disk.put(
                    f"{folder}/{temporary}" if folder else temporary, data[: len(data) // 2]
                )
                self.disk.coverage["left a temporary file"] += 1
            raise
        if process.finds_disk_full:
            process.finds_disk_full = False
            self.disk.coverage["disk was full"] += 1
            raise StoreError(f"no space left to write {name}")


def _split(name: str) -> tuple[str, str]:
    folder, _, base = name.rpartition("/")
    return folder, base
