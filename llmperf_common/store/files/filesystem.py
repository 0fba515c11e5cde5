"""The few file operations that the store needs, each atomic and durable when it returns.

Owns ``put_if_absent`` and the locks for POSIX folders. Names are relative, with ``/``. An object
store implements the same protocol, and so does the simulator of crashes in the tests.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from llmperf_common.errors import LlmperfError
from llmperf_common.files.plain_files import UnfitFileError, is_inside, open_lock_file, read_plain
from llmperf_common.store.files.folders import fsync_folder, is_folder, make_folder
from llmperf_common.store.files.pinned_folder import PinnedFolder

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of temporary files. Readers of Parquet folders skip names with a leading dot, and sweeps
remove temporary files that a dead process left."""


_MAX_SHARD_BYTES = 2**30
_MAX_OTHER_BYTES = 256 * 2**20
"""Maximum number of bytes of a file other than a shard. The manifest of a million shards is about
as large."""

_NO_SUCH_PLACE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)
"""Errors of ``link`` on FAT and on many FUSE mounts, such as those of buckets."""


class StoreError(LlmperfError):
    """The dataset folder cannot be used: the message says what, where and what to do."""


class StoreLostError(StoreError):
    """The dataset's place is gone, or another folder has its name (after an unmount or move)."""


class AccessDeniedError(StoreError):
    """The store refuses the request, because credentials or a right are missing."""


class Filesystem(Protocol):
    """The operations that the store needs of a folder."""

    def describe(self, name: str = "") -> str:
        """Return the full name of ``name`` for messages."""
        ...

    def read_bytes(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name`` with ``data``, durably; if it exists, change nothing and return False."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite ``name`` atomically; only for the card and locks, not for data."""
        ...

    def pin(self, name: str) -> None:
        """Remember this place by the content of its file ``name``, which must never change.

        From then on nothing is written to another place that has the same path.

        Raises:
            StoreLostError: The file ``name`` does not exist.
        """
        ...

    def check_place(self) -> None:
        """Raise StoreLostError if a place was pinned and its path now leads to another place."""
        ...

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Return the length of each of these files in bytes; None for a missing file."""
        ...

    def same_files(self, names: Collection[str], kept: Collection[str]) -> frozenset[str]:
        """Return those of ``names`` that lead to the file of a name in ``kept``: links, mostly.

        A store without links has none.
        """
        ...

    def move(self, name: str, new_name: str) -> None:
        """Rename a file, durably; no error if it is gone."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files directly in ``folder``, temporary ones included."""
        ...

    def folders(self, folder: str = "") -> list[str]:
        """Return the sorted names of the folders directly in ``folder``."""
        ...

    def remove(self, name: str) -> None:
        """Delete ``name``; no error if it is gone."""
        ...

    def lock(self, name: str, *, exclusive: bool, wait: bool) -> AbstractContextManager[bool]:
        """Hold an advisory lock during a ``with`` block; the value says whether it was granted."""
        ...

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock ``name`` now.

        Creates no lock file, so code that may only read the dataset can call this method, too.
        """
        ...


class PosixFilesystem:
    """A folder on a POSIX file system.

    A file appears under its name only when its bytes are on disk: temporary file, fsync, ``link``
    (which fails if the name exists), fsync of the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pinned: PinnedFolder | None = None

    def describe(self, name: str = "") -> str:
        """Return the path of ``name``."""
        return str(self.root / name) if name else str(self.root)

    def read_bytes(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError, StoreError if it cannot be read."""
        try:
            return read_plain(self._path(name), max_bytes=max_bytes_of(name), inside=self._path())
        except UnfitFileError as error:
            raise StoreError(str(error).replace(str(self._path()), str(self.root))) from error
        except FileNotFoundError:
            # Do not raise FileNotFoundError: the link itself is listed, so a reader would try again
            # for ever.
            if self._path(name).is_symlink():
                raise StoreError(f"{self.describe(name)} is a link to nothing: remove it") from None
            raise
        except (NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise StoreError(
                f"cannot read {self.describe(name)}: {error.strerror}; name a dataset folder"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG):
                raise
            raise StoreError(f"cannot read {self.describe(name)}: {error.strerror}") from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name`` with ``data``, durably; if it exists, change nothing and return False."""
        target = self._path(name)
        with self._temporary(name, data) as temporary:
            try:
                os.link(temporary, target)
                is_new = True
            except FileExistsError:
                is_new = False
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                raise StoreError(
                    f"cannot create {self.describe(name)} safely (never over an existing file): "
                    f"the file system has no hard links ({error.strerror}): choose a folder on a "
                    "local disk or NFS, or an s3:// location"
                ) from error
            # Sync also if another process created the file first. Otherwise a power cut could
            # remove that file, and leave a later file that refers to it.
            fsync_folder(target.parent)
        return is_new

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite ``name`` atomically."""
        target = self._path(name)
        with self._temporary(name, data) as temporary:
            os.replace(temporary, target)
            fsync_folder(target.parent)

    def pin(self, name: str) -> None:
        """Hold the folder open: all later writes go to it, and a replaced folder is an error."""
        try:
            self._pinned = PinnedFolder.open(self.root, name)
        except OSError as error:
            raise self._lost(f"{error.strerror}: {name}") from error
        weakref.finalize(self, os.close, self._pinned.descriptor)

    def check_place(self) -> None:
        """Raise StoreLostError if a folder was pinned and the path now leads to another folder."""
        why = self._pinned.why_lost(self.root) if self._pinned else ""
        if why:
            raise self._lost(why)

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Return the length of each of these files in bytes; None for a missing file."""
        found = {name: self._found(name) for name in names}
        return {name: one.st_size if one else None for name, one in found.items()}

    def same_files(self, names: Collection[str], kept: Collection[str]) -> frozenset[str]:
        """Return those of ``names`` that lead to the file of a name in ``kept``.

        That may be a hard link, a link to the file or from the file, the same name in other case,
        or a file in a folder that is mounted twice.
        """
        if not names:
            return frozenset()
        files = {(one.st_dev, one.st_ino) for one in map(self._found, kept) if one}
        found = {name: self._found(name) for name in names}
        return frozenset(n for n, one in found.items() if one and (one.st_dev, one.st_ino) in files)

    def move(self, name: str, new_name: str) -> None:
        """Rename a file, durably; no error if it is gone."""
        old, new = self._path(name), self._path(new_name)
        try:
            make_folder(new.parent)
            os.replace(old, new)
            for folder in (new.parent, old.parent):
                fsync_folder(folder)
        except FileNotFoundError:
            self.check_place()
        except OSError as error:
            raise (_explained(error, Path(self.describe(new_name))) or error) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files directly in ``folder``."""
        return self._listed(folder, folders=False)

    def folders(self, folder: str = "") -> list[str]:
        """Return the sorted names of the folders directly in ``folder``."""
        return self._listed(folder, folders=True)

    def _listed(self, folder: str, *, folders: bool) -> list[str]:
        try:
            with os.scandir(self._folder(folder)) as entries:
                return sorted(entry.name for entry in entries if is_folder(entry) is folders)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno not in _NO_SUCH_PLACE:
                raise
            raise StoreError(f"cannot list {self.describe(folder)}: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """Delete ``name``; no error if it is gone."""
        self._path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, name: str, *, exclusive: bool, wait: bool) -> Iterator[bool]:
        """Hold ``flock`` on ``name``; the operating system drops it when the process dies."""
        try:
            descriptor = _open_lock(self._path(name))
        except FileNotFoundError:
            self.check_place()
            raise
        try:
            mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            try:
                fcntl.flock(descriptor, mode if wait else mode | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock ``name``; False if unknown. Creates no lock file."""
        try:
            descriptor = open_lock_file(self._path(name), create=False)
        except (OSError, UnfitFileError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def _path(self, name: str = "") -> Path:
        folder, _, last = name.rpartition("/")
        return self._folder(folder) / last

    def _folder(self, name: str = "") -> Path:
        """Return the path of a folder; raise StoreError if it or a parent in the dataset is a link.

        A link to another folder of the dataset would give each file there a second name, which no
        manifest lists, and a sweep would take it for a leftover. The dataset itself may be a link.
        """
        base = path = self._pinned.base if self._pinned else self.root
        for part in Path(name).parts:
            path /= part
            if path.is_symlink():
                where = "within" if is_inside(path, base) else "that leads out of"
                raise StoreError(
                    f"{self.root / path.relative_to(base)} is a link {where} {self.root}: copy the "
                    "folder with the targets of its links (cp -rL)"
                )
        return path

    def _found(self, name: str) -> os.stat_result | None:
        """Return what is known of a regular file, links followed; None if there is none."""
        try:
            found = self._path(name).stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def _lost(self, why: str) -> StoreLostError:
        return StoreLostError(
            f"{self.root} is no longer the dataset's folder ({why}): nothing that was committed is "
            "lost; put the folder back (mount it, or move it to its old name) and run the same "
            "command again"
        )

    @contextlib.contextmanager
    def _temporary(self, name: str, data: bytes) -> Iterator[Path]:
        """Write ``data`` to a temporary file beside ``name`` and fsync it; remove it at the end."""
        target = self._path(name)
        temporary = target.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
        try:
            make_folder(target.parent)
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
            )
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except FileNotFoundError as error:
            self.check_place()
            raise StoreError(
                f"a temporary file of {self.describe(name)} was removed while it was written: "
                "nothing committed is lost; run the same command again"
            ) from error
        except OSError as error:
            self.check_place()  # a lost folder is the likeliest reason, and has a better message
            explained = _explained(error, Path(self.describe(name)))
            if explained is None:
                raise
            raise explained from error
        finally:
            # It may never have been created, or the disk fails. What is left, the sweep removes.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _open_lock(path: Path) -> int:
    """Open a lock file; an existing file can be locked even in a read-only folder."""
    try:
        make_folder(path.parent)
        return open_lock_file(path, create=True)
    except UnfitFileError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        explained = _explained(error, path)
        if explained is None:
            raise
        raise explained from error


def max_bytes_of(name: str) -> int:
    """Return the maximum size in bytes of a file of a dataset; larger files are not read."""
    return _MAX_SHARD_BYTES if name.endswith(".parquet") else _MAX_OTHER_BYTES


def _explained(error: OSError, target: Path) -> StoreError | None:
    """Return the error to show for an OSError; None if it is a bug or the hardware fails."""
    if error.errno == errno.EFBIG:
        return StoreError(
            f"{target} would be larger than the limit on file sizes: nothing committed is lost; "
            "raise `ulimit -f` and run the same command again"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"no space left to write {target} ({error.strerror}): nothing committed is lost; "
            "free some space and run the same command again"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return StoreError(
            f"cannot write {target}: {error.strerror}; choose a folder you may write to"
        )
    return None
