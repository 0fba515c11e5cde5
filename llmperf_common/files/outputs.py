"""The rule for ``--out``: a command may replace only its own earlier output.

Owns the rule and its messages. Each command recognises its own output itself, by a line in a page's
head, a key in a Parquet schema, or the names in a folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from llmperf_common.config import ConfigError
from llmperf_common.files.foreign_json import parse_json
from llmperf_common.files.plain_files import UnfitFileError, read_plain

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)
_NAMES_SHOWN = 3
_MOST_JSON_BYTES = 32 * 2**20
"""Maximum size in bytes of a JSON file that is read to recognise it. No command writes a longer
one."""


class OutputTaken(ConfigError):  # noqa: N818  (named for what is wrong)
    """``--out`` names a file or folder that this command did not write."""


def file_to_write(path: Path, *, is_ours: Callable[[Path], bool], what: str) -> Path:
    """Return the file that a command may write: ``path``, with symbolic links followed.

    Args:
        path: the value of ``--out``.
        is_ours: whether the same command wrote the regular file at that path.
        what: the name of the output for the message, such as ``report``.

    Raises:
        OutputTaken: The path holds a foreign file, a folder, a device, a pipe or a socket.
    """
    found = _mode(path)
    if found is None:
        return _behind_links(path)
    if not stat.S_ISREG(found):
        raise OutputTaken(f"--out {path} is {_kind(found)}, not a file: name another path")
    target = path.resolve()
    if not is_ours(target):
        raise OutputTaken(
            f"--out {path} exists and holds no {what} of llmperf: name another file, "
            "or remove this one first"
        )
    return target


def folder_to_write(
    path: Path, *, names: Collection[str], is_ours: Callable[[Path], bool], what: str
) -> Path:
    """Return the folder that a command may write: ``path``, with symbolic links followed.

    Args:
        path: the value of ``--out``.
        names: names of all files and folders that the command writes into it.
        is_ours: whether the same command wrote a folder with only these names.
        what: the name of the output for the message, such as ``evaluation``.

    Raises:
        OutputTaken: The path holds a file, a device, or a folder with content that the command did
            not write.
    """
    if not is_folder(path):
        return path
    target = path.resolve()
    there = sorted(os.listdir(target))
    if there and not is_ours(target):
        raise OutputTaken(
            f"--out {path}: the folder is not empty and holds no {what} of llmperf: name a new "
            "folder"
        )
    foreign = [name for name in there if name not in names]
    if foreign:
        shown = ", ".join(foreign[:_NAMES_SHOWN]) + (", …" if len(foreign) > _NAMES_SHOWN else "")
        raise OutputTaken(
            f"--out {path} holds {shown} beside the {what}, and writing here would delete them: "
            "move them away, or name a new folder"
        )
    return target


def is_folder(path: Path, option: str = "--out") -> bool:
    """Return True for a folder at ``path`` (links followed), False where nothing exists.

    Raises:
        OutputTaken: The path holds something other than a folder.
    """
    found = _mode(path)
    if found is None:
        _behind_links(path, option)
        return False
    if not stat.S_ISDIR(found):
        kind = "a file" if stat.S_ISREG(found) else _kind(found)
        raise OutputTaken(f"{option} {path} is {kind}, not a folder: name a new folder")
    return True


def holds_json(path: Path, keys: Collection[str]) -> bool:
    """Whether ``path`` is a regular file that holds a JSON object with at least ``keys``."""
    if not path.is_file():
        return False
    try:
        content = parse_json(read_plain(path, max_bytes=_MOST_JSON_BYTES))
    except (OSError, ValueError, UnfitFileError):
        return False
    return isinstance(content, dict) and set(keys) <= content.keys()


def _mode(path: Path) -> int | None:
    """Return the file mode at ``path``, links followed; None where nothing exists."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None


def _behind_links(path: Path, option: str = "--out") -> Path:
    """Return ``path`` for new output; refuse a dangling link, which no command creates."""
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists():
            what = "is" if link == path else f"lies behind {link},"
            raise OutputTaken(
                f"{option} {path} {what} a link to nothing: name another path, or remove the link"
            )
    return path


def _kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "a special file")
