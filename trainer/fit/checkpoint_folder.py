"""The folder of a fit's checkpoints: names, manifest, check, removal.

``checkpoint.py`` owns the content of a checkpoint.

A checkpoint is a folder ``step-00000040``. It is written under the name ``.new-step-00000040`` and
renamed after an fsync. Its ``manifest.json`` is written last and has the bytes and SHA-256 of every
other file. A checkpoint is whole if all files match the manifest and no file of tensors is missing
in the manifest. Readers ignore other files, such as ``Thumbs.db``, and folders whose names begin
with a dot; the next successful checkpoint removes these folders.
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

from trainer.data.foreign_files import read_json_value

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"
_PREFIX = "step-"
_NEW = ".new-"
_OLD = ".old-"
_PIECE_BYTES = 1 << 24
_TENSORS = ("weights-*.safetensors", "moments-*.safetensors")
"""Patterns of the files that readers look for in a checkpoint, whatever the manifest lists."""

CrashPoint = Callable[[str], object]
"""Called with a name after each step of writing; tests kill the process there."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        path: its folder.
        step: number of optimiser steps done when it was saved.
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
    """Return the steps of all checkpoints in ``folder``, ascending, even if they are not whole."""
    if not folder.is_dir():
        return []
    names = [path.name.removeprefix(_PREFIX) for path in folder.iterdir() if path.is_dir()]
    steps = sorted({int(name) for name in names if name.isdecimal()})
    return [step for step in steps if (folder / name_of(step)).is_dir()]


def newest_whole(
    folder: Path, check: Callable[[Checkpoint], object] = lambda _one: None
) -> Checkpoint | None:
    """Return the newest whole checkpoint or None; log a warning about newer damaged ones.

    Args:
        folder: the folder of the checkpoints.
        check: raises ValueError for a checkpoint whose content is damaged.
    """
    for step in reversed(steps_in(folder)):
        found = read_whole(folder, step)
        if not isinstance(found, str):
            try:
                check(found)
            except ValueError as error:
                found = str(error)
        if not isinstance(found, str):
            return found
        _logger.warning(
            "checkpoint %s is not whole (%s): trying the checkpoint before it", name_of(step), found
        )
    return None


def read_whole(folder: Path, step: int) -> Checkpoint | str:
    """Return the checkpoint of ``step``, or a text that says why it is not whole."""
    path = folder / name_of(step)
    try:
        files = read_json_value(path / MANIFEST_FILE)["files"]
        for name, facts in files.items():
            if Path(name).name != name or not (path / name).is_file():
                raise ValueError(f"{name!r} in the manifest is no file of the checkpoint")
            if (path / name).stat().st_size != facts["bytes"]:
                return f"the length of {name} is not the one in the manifest"
            if _sha256(path / name) != facts["sha256"]:
                return f"the SHA-256 of {name} is not the one in the manifest"
        unlisted = sorted(_tensors_in(path) - files.keys())
        if unlisted or STATE_FILE not in files:
            return f"the manifest does not list {(unlisted or [STATE_FILE])[0]!r:.80}"
        state = state_in(path)
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return Checkpoint(path=path, step=step, state=state)


def _tensors_in(path: Path) -> set[str]:
    """Return the names of a checkpoint's files of weights and moments."""
    return {one.name for pattern in _TENSORS for one in path.glob(pattern)}


def state_in(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's ``state.json``.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is too large, or it holds no JSON object.
    """
    state = read_json_value(path / STATE_FILE)
    if not isinstance(state, dict):
        raise ValueError(f"{STATE_FILE} holds no JSON object")
    return state


def begin(folder: Path, step: int) -> Path:
    """Create and return the empty temporary folder for the checkpoint of ``step``."""
    new = folder / (_NEW + name_of(step))
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(parents=True)
    return new


def write_file(path: Path, content: bytes) -> dict[str, Any]:
    """Write and fsync a file while a thread hashes it; return bytes and sha256 for the manifest."""
    with ThreadPoolExecutor(1, "hash") as hashing:
        digest = hashing.submit(hashlib.sha256, content)
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return {"bytes": len(content), "sha256": digest.result().hexdigest()}


def publish(new: Path, files: dict[str, Any], at_point: CrashPoint) -> Path:
    """Write the manifest of ``new`` and rename the folder to its final name.

    Args:
        new: folder from ``begin``, with all files in it.
        files: bytes and sha256 of each file by name (from ``write_file``).
        at_point: called after each step.
    """
    write_file(new / MANIFEST_FILE, json.dumps({"files": files}, indent=1).encode())
    at_point(MANIFEST_FILE)
    sync_folder(new)
    at_point("synced")
    target = new.parent / new.name.removeprefix(_NEW)
    if target.exists():
        set_aside(target)  # damaged, because the fit would have resumed from a whole one
        at_point("aside")
    new.rename(target)
    at_point("renamed")
    sync_folder(new.parent)
    at_point("published")
    return target


def drop(new: Path) -> None:
    """Remove the folder of a checkpoint that could not be written, to free its disk space."""
    shutil.rmtree(new, ignore_errors=True)


def set_aside(path: Path) -> None:
    """Hide a checkpoint from readers by a rename, which is atomic; ``prune`` deletes it later."""
    hidden = path.with_name(_OLD + path.name)
    if hidden.exists():
        shutil.rmtree(hidden)
    path.rename(hidden)


def prune(folder: Path, keep: int, best: Collection[int], at_point: CrashPoint) -> None:
    """Remove old checkpoints, and all hidden folders.

    Args:
        folder: the folder of the checkpoints; no other process writes into it.
        keep: number of newest checkpoints to keep.
        best: steps of other checkpoints to keep.
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
    """Fsync a folder, so that its names are durable."""
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
