"""The opening of a run's folder for a training, and the removal of its content.

Owns the removal when a training replaces another run, or fails before there is anything to resume.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.run.folder import NAMES, PREPARED_FOLDER, Stage, check_free, has_identity, stage_of
from trainer.run.folder_lock import locked


@contextmanager
def opened(out: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Create the folder of a run if missing, and lock it while the block runs.

    With ``overwrite``, another run or a published run in the folder is removed. An unpublished run
    of the same identity stays, so that it is resumed. If the block fails before anything was
    prepared, the files in the folder are removed.

    Raises:
        OutputTaken: The folder holds something other than a run (``RunExists``: another run, or
            another process trains in the folder).
    """
    target = check_free(out, identity, overwrite=overwrite)
    was_there = target.exists()
    target.mkdir(parents=True, exist_ok=True)
    taken = (
        f"--out {out}: another process works in this folder: wait until it ends, or name a new "
        "folder"
    )
    with locked(target, taken):
        stage = stage_of(target)
        is_same = stage is not Stage.EMPTY and has_identity(target, identity)
        if overwrite and stage is not Stage.EMPTY and (stage is Stage.PUBLISHED or not is_same):
            _empty(target)
        try:
            yield target
        except BaseException:
            if stage_of(target) is not Stage.PUBLISHED and not (target / PREPARED_FOLDER).exists():
                _empty(target)
                if not was_there:
                    target.rmdir()
            raise


def _empty(target: Path) -> None:
    """Remove a run's files, ``published.json`` first: a half-removed run is not published."""
    for name in sorted(NAMES, key=lambda name: name != "published.json"):
        path = target / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
