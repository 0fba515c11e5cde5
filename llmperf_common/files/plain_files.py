"""Safe opening of files that another user may have made: only regular files of limited size.

Owns the reading of a whole file, the opening of a lock file, and the appending to a file that
LLMPerf wrote. Without the checks, opening a FIFO would block for ever, reading ``/dev/zero`` would
never end, and a link could lead to another user's file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from llmperf_common.errors import LlmperfError

MIB = 2**20


class UnfitFileError(LlmperfError):
    """A file is not regular, leads out of its folder or is too large; the message says which."""


def read_plain(path: Path, *, max_bytes: int, inside: Path | None = None) -> bytes:
    """Return the whole of a regular file.

    Args:
        path: the file.
        max_bytes: a larger file is refused before it is read.
        inside: a folder that the file must lie in after links are followed.

    Raises:
        FileNotFoundError: The file does not exist.
        UnfitFileError: The file is not regular or too large, or a link leads out of ``inside``.
    """
    with open(_open_regular(path, max_bytes=max_bytes, inside=inside), "rb") as file:
        # A read of ``max_bytes`` would allocate that many bytes, and fail under a memory limit.
        found = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
        while len(found) <= max_bytes and (more := file.read(MIB)):
            found += more
    if len(found) > max_bytes:  # the file has grown, or its size is reported as 0 (/proc)
        raise _too_large(path, max_bytes)
    return found


def check_plain(path: Path, *, max_bytes: int, inside: Path | None = None) -> None:
    """Raise as ``read_plain`` does, but read nothing; for files that a library opens by name."""
    os.close(_open_regular(path, max_bytes=max_bytes, inside=inside))


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` lies in ``folder``, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_own_file(path: Path) -> bool | None:
    """Whether ``path`` itself is a regular file, not a link; None where nothing exists."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return None


def open_to_append(path: Path) -> int:
    """Open a file for appending; create it if missing, and refuse it if it or its folder is a link.

    Raises:
        UnfitFileError: The file or its folder is a link, or the file is not a regular file.
        OSError: The file cannot be opened.
    """
    if path.parent.is_symlink() or is_own_file(path) is False:
        raise UnfitFileError(
            f"{path} is a link or not a regular file, or its folder is a link: remove it"
        )
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o644)


def _too_large(path: Path, max_bytes: int) -> UnfitFileError:
    return UnfitFileError(f"{path} has more than {max_bytes} bytes: too large to be read")


def _open_regular(path: Path, *, max_bytes: int, inside: Path | None) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise UnfitFileError(f"{path} is not a regular file: replace it by one")
        if found.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        if inside is not None and not is_inside(path, inside):
            raise UnfitFileError(
                f"{path} is a link that leads out of {inside}: "
                "copy the folder with the targets of its links (cp -rL)"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_lock_file(path: Path, *, create: bool, mode: int = 0o644) -> int:
    """Open a lock file without following a link; an existing file may be read-only.

    Args:
        path: the file.
        create: whether to create the file if it is missing.
        mode: permissions of a new file.

    Raises:
        FileNotFoundError: The file is missing and ``create`` is false.
        UnfitFileError: The path is a link or not a regular file.
        OSError: The file cannot be opened.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = _opened_for_locking(path, flags, create=create, mode=mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_lock_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_lock_file(path)
    return descriptor


def _opened_for_locking(path: Path, flags: int, *, create: bool, mode: int) -> int:
    try:
        return os.open(path, flags | os.O_RDWR | (os.O_CREAT if create else 0), mode)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        try:
            return os.open(path, flags | os.O_RDONLY)
        except FileNotFoundError:
            raise error from None


def _no_lock_file(path: Path) -> UnfitFileError:
    return UnfitFileError(
        f"{path} must be a lock file, but it is a link or not a regular file: remove it"
    )
