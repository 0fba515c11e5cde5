"""Lock files of a host, for what only one collector may use: a GPU, or a processor to launch from.

Owns the folder of the lock files, and their safety in a folder that all users may write to. A lock
is an advisory ``flock``: it ends when its holder ends in any way; the file stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

LOCK_FOLDER_VARIABLE = "LLMPERF_LOCK_DIR"
_SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108  (all users must find the same)


def lock_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the lock files, one for all users and jobs of the host.

    It is ``LLMPERF_LOCK_DIR``, else the first of ``/run/lock`` and ``/tmp`` that all users may
    write to. ``TMPDIR`` comes last, because batch systems set it for each job.
    """
    chosen = environ.get(LOCK_FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    for folder in _SHARED_FOLDERS:
        # The folder's mode decides, not this user's rights: root may write anywhere, but must
        # choose the same folder as all other users.
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            return folder
    return Path(tempfile.gettempdir())


def open_lock(path: Path) -> int:
    """Open a lock file, and create it if needed; children do not inherit it.

    An existing file is opened without O_CREAT, which Linux refuses for another user's file in
    folders like /tmp (``fs.protected_regular``). The file must be a regular file with a single
    link, so that no link can make this process write elsewhere.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(path, flags)
            break
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # despite the umask, so that others can lock it
                break
        except PermissionError:  # another user's file can be locked, but not written
            descriptor = os.open(path, (flags & ~os.O_RDWR) | os.O_RDONLY)
            break
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise OSError(None, "it is not a regular file with a single link: remove it", str(path))
    return descriptor


def lock_now(descriptor: int) -> bool:
    """Lock an open file without waiting; False if another process holds the lock.

    Raises:
        OSError: The file cannot be locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock until it is closed; None if another process has it.

    Raises:
        OSError: The file cannot be opened or locked, or is not a regular one.
    """
    descriptor = open_lock(path)
    is_ours = False
    try:
        is_ours = lock_now(descriptor)
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None
