"""The folder of a fit's checkpoints: which are whole, which is taken, which are kept.

Owns the names, the manifest and its check, and removal. What is in a checkpoint is ``checkpoint.py``'s.

A checkpoint is a folder ``step-00000040``. Its ``manifest.json`` is written last and names every other file
with its bytes and SHA-256; the folder is written under ``.new-step-00000040`` and renamed when all of it is on
the disk. A checkpoint is whole if its files are as the manifest says. What begins with a dot is nothing to a
reader, and the next checkpoint that was written well removes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"
_PREFIX = "step-"
_NEW = ".new-"
_OLD = ".old-"
_PIECE_BYTES = 1 << 24

CrashPoint = Callable[[str], object]
"""Called with the name of each step of writing, when it is done; tests end the process there."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        path: its folder.
        step: the optimiser step that it was taken after.
        state: content of ``state.json``.
    """

    path: Path
    step: int
    state: dict[str, Any]


def name_of(step: int) -> str:
    """Return the name of a checkpoint's folder.

    >>> name_of(40)
    'step-00000040'
    """
    return f"{_PREFIX}{step:08d}"


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in ``folder``, whole or not, ascending."""
    if not folder.is_dir():
        return []
    names = [path.name.removeprefix(_PREFIX) for path in folder.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())


def newest_whole(folder: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint; a newer one that is not whole is warned of. None without any."""
    for step in reversed(steps_in(folder)):
        found = read_whole(folder, step)
        if not isinstance(found, str):
            return found
        _logger.warning(
            "checkpoint %s is not whole (%s): the one before it is taken", name_of(step), found
        )
    return None


def read_whole(folder: Path, step: int) -> Checkpoint | str:
    """Return the checkpoint of ``step``, or what is wrong with it."""
    path = folder / name_of(step)
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        for name, facts in manifest["files"].items():
            if (path / name).stat().st_size != facts["bytes"]:
                return f"{name} has another length than its manifest says"
            if _sha256(path / name) != facts["sha256"]:
                return f"{name} has other bytes than its manifest says"
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return Checkpoint(path=path, step=step, state=state)


def begin(folder: Path, step: int) -> Path:
    """Return the empty folder that the checkpoint of ``step`` is written into."""
    new = folder / (_NEW + name_of(step))
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(parents=True)
    return new


def write_file(path: Path, content: bytes) -> dict[str, Any]:
    """Write a file to the disk, and return its facts for the manifest; a thread hashes it meanwhile."""
    with ThreadPoolExecutor(1, "hash") as hashing:
        digest = hashing.submit(hashlib.sha256, content)
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return {"bytes": len(content), "sha256": digest.result().hexdigest()}


def publish(new: Path, files: dict[str, Any], at_point: CrashPoint) -> Path:
    """Write the manifest of ``new`` and give the folder its name.

    Args:
        new: what ``begin`` returned, with all files in it.
        files: name to facts (``write_file``).
        at_point: called after each step.
    """
    write_file(new / MANIFEST_FILE, json.dumps({"files": files}, indent=1).encode())
    at_point(MANIFEST_FILE)
    sync_folder(new)
    at_point("synced")
    target = new.parent / new.name.removeprefix(_NEW)
    if target.exists():
        set_aside(target)  # not whole: a whole one would have been resumed from
        at_point("aside")
    new.rename(target)
    at_point("renamed")
    sync_folder(new.parent)
    at_point("published")
    return target


def drop(new: Path) -> None:
    """Remove a checkpoint that could not be written, so that the disk has its space back."""
    shutil.rmtree(new, ignore_errors=True)


def set_aside(path: Path) -> None:
    """Hide a checkpoint from readers: its removal is a rename, which a crash cannot halve."""
    hidden = path.with_name(_OLD + path.name)
    if hidden.exists():
        shutil.rmtree(hidden)
    path.rename(hidden)


def prune(folder: Path, keep: int, best: Collection[int], at_point: CrashPoint) -> None:
    """Remove all but the newest ``keep`` checkpoints and those of the steps ``best``, and what is hidden.

    Args:
        folder: of the checkpoints; no other process writes into it.
        keep: how many of the newest stay.
        best: steps of checkpoints that stay, too.
        at_point: called after each step.
    """
    steps = steps_in(folder)
    for step in steps[: max(len(steps) - keep, 0)]:
        if step not in best:
            set_aside(folder / name_of(step))
            at_point("hidden")
    for path in folder.iterdir():
        if path.name.startswith((_NEW, _OLD)):
            shutil.rmtree(path)
            at_point("removed")


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
