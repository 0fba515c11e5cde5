"""Opening files that a stranger may have put there: regular ones only, never waiting, never more than is asked for.

Owns the doors: reading a whole file, opening a lock file, and adding to a file of ours. A FIFO would wait for ever, ``/dev/zero`` never ends,
a link would lead to another's file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from llmperf_common.errors import LlmperfError

MIB = 2**20


class UnfitFileError(LlmperfError):
    """It is not a regular file, leads out of its folder, or is too large; the message says which, where and what to do."""


def read_plain(path: Path, *, max_bytes: int, inside: Path | None = None) -> bytes:
    """Return the whole of a regular file.

    Args:
        path: the file.
        max_bytes: a larger one is refused before it is read.
        inside: a folder that no link may lead out of.

    Raises:
        FileNotFoundError: It is not there.
        UnfitFileError: It is not a regular file, too large, or a link leads out of ``inside``.
    """
    with open(_open_regular(path, max_bytes=max_bytes, inside=inside), "rb") as file:
        found = file.read(max_bytes + 1)
    if len(found) > max_bytes:  # it has grown, or does not know its size (/proc)
        raise _too_large(path, max_bytes)
    return found


def check_plain(path: Path, *, max_bytes: int, inside: Path | None = None) -> None:
    """Raise what ``read_plain`` would, without reading: for files that a library opens by their name."""
    os.close(_open_regular(path, max_bytes=max_bytes, inside=inside))


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` lies in ``folder``, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_own_file(path: Path) -> bool | None:
    """Whether there is a regular file, and no link to one; None where there is nothing."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return None


def open_to_append(path: Path) -> int:
    """Open a file of a folder of ours at its end, made where it is missing; neither may be a link.

    Raises:
        UnfitFileError: One is, or there is something that is not a regular file.
        OSError: It cannot be opened.
    """
    if path.parent.is_symlink() or is_own_file(path) is False:
        raise UnfitFileError(
            f"{path} is a link or not a regular file, or its folder is a link: remove it"
        )
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o644)


def _too_large(path: Path, max_bytes: int) -> UnfitFileError:
    return UnfitFileError(f"{path} has more than {max_bytes} bytes: it is not read")


def _open_regular(path: Path, *, max_bytes: int, inside: Path | None) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise UnfitFileError(f"{path} is not a regular file: it is not read")
        if found.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        if inside is not None and not is_inside(path, inside):
            raise UnfitFileError(
                f"{path} is a link that leads out of {inside}: copy the folder with the targets of its links (cp -rL)"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_lock_file(path: Path, *, create: bool, mode: int = 0o644) -> int:
    """Open a lock file without following a link; one that exists can be locked also where nothing may be written.

    Args:
        path: the file.
        create: make it where it is missing.
        mode: of a file that is made.

    Raises:
        FileNotFoundError: It is not there, and is not to be made.
        UnfitFileError: There is something that is not a regular file.
        OSError: It cannot be opened.
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
        f"{path} is to be a lock file, but there is a link or something else that is not a regular file: remove it"
    )
