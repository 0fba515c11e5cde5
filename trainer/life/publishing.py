"""Publishing of a run: its files are moved into its folder, then a marker says that it is finished.

Owns the marker ``published.json``. If the process is killed before the marker is written, the run
is not published; the same command publishes it again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.run.folder import (
    CHECKPOINTS_FOLDER,
    PREPARED_FOLDER,
    PUBLISHED_FILE,
    PUBLISHING_FOLDER,
    write_json,
)

_LEFT_OUT = frozenset({CHECKPOINTS_FOLDER, PREPARED_FOLDER})
"""Folders that only the fit needs; a published run does not need them."""


@contextmanager
def publishing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; move its files to ``folder`` if the block raises no error."""
    staged = folder / PUBLISHING_FOLDER
    if staged.exists():
        shutil.rmtree(staged)
    staged.mkdir()
    try:
        yield staged
        for path in sorted(staged.iterdir()):
            target = folder / path.name
            if target.is_dir():  # written by a process that was killed while it published
                shutil.rmtree(target)
            os.replace(path, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def mark_published(folder: Path, facts: Mapping[str, Any], *, keep_fit: bool) -> None:
    """Write ``published.json`` with ``facts`` and each file's bytes and SHA-256.

    Args:
        folder: the run.
        facts: JSON values about the training.
        keep_fit: keep checkpoints and prepared tokens, which are deleted otherwise.
    """
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _is_left_out(path.relative_to(folder).as_posix())
    }
    for name in files:
        _sync(folder / name)
    write_json(folder / PUBLISHED_FILE, {"schema": 1, **facts, "files": files})
    _sync(folder)
    if not keep_fit:
        for name in sorted(_LEFT_OUT):
            shutil.rmtree(folder / name, ignore_errors=True)


def _is_left_out(name: str) -> bool:
    return name == PUBLISHED_FILE or any(name.startswith(f"{folder}/") for folder in _LEFT_OUT)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
