"""Lock files of a host, for what only one of its collectors may have: a GPU, a processor to launch from.

Owns where they lie and their safety in a folder that all users may write to. A lock is an advisory ``flock``: it goes
when its holder dies, however that happens, and the file stays.
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
_SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108  (all users must come to the same one)


def lock_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the lock files: one for all users and jobs of the host.

    ``LLMPERF_LOCK_DIR``, else the first of ``/run/lock`` and ``/tmp`` that all users may write to. Not ``TMPDIR``,
    which batch systems set for each job, unless there is nothing else.
    """
    chosen = environ.get(LOCK_FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    for folder in _SHARED_FOLDERS:
        # By its mode and not by what we may do: root may write anywhere, and would look elsewhere than others.
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            return folder
    return Path(tempfile.gettempdir())


def open_lock(path: Path) -> int:
    """Open a lock file, making it if need be; children do not inherit it.

    An existing file is opened without O_CREAT: in folders like /tmp the kernel refuses that for another user's file
    (``fs.protected_regular``). It must be a plain file of one name, so that a link cannot make us write elsewhere.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(path, flags)
            break
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # whatever the umask: others must be able to lock it
                break
        except (
            PermissionError
        ):  # of a user whose file is not writable to us: it can still be locked
            descriptor = os.open(path, (flags & ~os.O_RDWR) | os.O_RDONLY)
            break
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise OSError(None, "it is no plain file of one name: remove it", str(path))
    return descriptor


def lock_now(descriptor: int) -> bool:
    """Lock an open file without waiting; False where another process holds it. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock file until it is closed, None where another process holds it.

    Raises:
        OSError: It cannot be opened or locked, or is no plain file.
    """
    descriptor = open_lock(path)
    is_ours = False
    try:
        is_ours = lock_now(descriptor)
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None
