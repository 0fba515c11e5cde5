"""Recognise folders, and create and sync them so that a power cut takes away no file in them.

Owns the order of ``mkdir`` and ``fsync``. ``filesystem.py`` owns the files and the messages.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, each durably.

    Each parent is synced (fsync). Otherwise a power cut could remove the folder with its shards.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder.

    Special files count as files; reading them gives an error.
    """
    try:
        return entry.is_dir()
    except OSError:  # the links form a circle
        return False
