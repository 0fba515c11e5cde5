"""What ``--out`` of a command may replace: nothing there, or what the same command wrote before.

Owns the rule and its messages. How a command recognises its own output (a line in a page's head, a key in a Parquet
schema, the names in a folder) stays with the command.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from llmperf_common.config import ConfigError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)
_NAMES_SHOWN = 3


class OutputTaken(ConfigError):  # noqa: N818  (named for what is wrong)
    """``--out`` names something that this command did not write."""


def file_to_write(path: Path, *, is_ours: Callable[[Path], bool], what: str) -> Path:
    """Return the file that a command may write as ``path``, symbolic links followed.

    Args:
        path: what ``--out`` names.
        is_ours: whether the regular file there was written by the same command.
        what: what the command writes, for the message: ``report``.

    Raises:
        OutputTaken: There is something else: another file, a folder, a device node, a pipe, a socket.
    """
    found = _mode(path)
    if found is None:
        return _behind_links(path)
    if not stat.S_ISREG(found):
        raise OutputTaken(f"--out {path}: is {_kind(found)}, not a file: name another path")
    target = path.resolve()
    if not is_ours(target):
        raise OutputTaken(
            f"--out {path}: exists and holds no {what} of llmperf: name another file, or remove it first"
        )
    return target


def folder_to_write(
    path: Path, *, names: Collection[str], is_ours: Callable[[Path], bool], what: str
) -> Path:
    """Return the folder that a command may write as ``path``, symbolic links followed.

    Args:
        path: what ``--out`` names.
        names: of all files and folders that the command writes into it.
        is_ours: whether a folder that holds only these was written by the same command.
        what: what the command writes, for the message: ``evaluation``.

    Raises:
        OutputTaken: There is something else: a file, a device node, a folder with anything that the command did
            not write.
    """
    if not is_folder(path):
        return path
    target = path.resolve()
    there = sorted(os.listdir(target))
    if there and not is_ours(target):
        raise OutputTaken(
            f"--out {path}: the folder is not empty and holds no {what} of llmperf: name a new folder"
        )
    foreign = [name for name in there if name not in names]
    if foreign:
        shown = ", ".join(foreign[:_NAMES_SHOWN]) + (", …" if len(foreign) > _NAMES_SHOWN else "")
        raise OutputTaken(
            f"--out {path}: holds {shown} beside the {what}, which would be lost: move that away, or name a new folder"
        )
    return target


def is_folder(path: Path, option: str = "--out") -> bool:
    """Whether there is a folder at ``path`` (links followed), and not nothing yet.

    Raises:
        OutputTaken: There is something else.
    """
    found = _mode(path)
    if found is None:
        _behind_links(path, option)
        return False
    if not stat.S_ISDIR(found):
        kind = "a file" if stat.S_ISREG(found) else _kind(found)
        raise OutputTaken(f"{option} {path}: is {kind}, not a folder: name a new folder")
    return True


def holds_json(path: Path, keys: Collection[str]) -> bool:
    """Whether ``path`` is a regular file with a JSON object that has ``keys``."""
    if not path.is_file():
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and set(keys) <= content.keys()


def _mode(path: Path) -> int | None:
    """Return the mode of what lies at ``path``, links followed; None where there is nothing yet."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None


def _behind_links(path: Path, option: str = "--out") -> Path:
    """Return where a new ``path`` will lie; a link without a target was made by another and stays as it is."""
    if path.is_symlink():
        raise OutputTaken(f"{option} {path}: is a link to nothing: name another path, or remove it")
    return path


def _kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "no regular file")
