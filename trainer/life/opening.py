"""The opening of a run's folder for a training, and the removal of its content.

Owns the removal when a training replaces another run, or fails before there is anything to resume,
and the text that says what an interrupted training keeps.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.fit.checkpoint_folder import steps_in
from trainer.run.folder import (
    CHECKPOINTS_FOLDER,
    FIT_FOLDER,
    NAMES,
    PREPARED_FOLDER,
    Stage,
    check_free,
    has_identity,
    stage_of,
)
from trainer.run.folder_lock import locked


@contextmanager
def opened(out: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Create the folder of a run if missing, and lock it while the block runs.

    With ``overwrite``, another run or a published run in the folder is removed. An unpublished run
    of the same identity stays, so that it is resumed. If the block fails before anything was
    prepared, the files that this start has written are removed. The files of an earlier start are
    kept, because they may include checkpoints even if the prepared data was removed.

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
        is_new = stage_of(target) is Stage.EMPTY
        try:
            yield target
        except BaseException:
            if is_new and not _is_worth_keeping(target):
                _empty(target)
                if not was_there:
                    target.rmdir()
            raise


def kept_in(out: Path) -> str:
    """Return a text that says what an interrupted training keeps in the folder ``out``."""
    try:
        stage = stage_of(out)
    except OSError:
        return f"{out} cannot be read"
    if stage is Stage.PUBLISHED:
        return f"the run in {out} is finished"
    if stage is Stage.EMPTY:
        return f"nothing was kept in {out}"
    steps = steps_in(out / CHECKPOINTS_FOLDER)
    kept = ["the prepared data"] if (out / PREPARED_FOLDER).is_dir() else []
    if steps:
        kept.append(f"the checkpoints (newest: step {steps[-1]})")
    return f"{out} keeps {' and '.join(kept or ['the config and the split'])}"


def _is_worth_keeping(target: Path) -> bool:
    """Whether a run is published, is prepared, or has files of a fit."""
    fit = target / FIT_FOLDER
    return (
        stage_of(target) is Stage.PUBLISHED
        or (target / PREPARED_FOLDER).exists()
        or (fit.is_dir() and any(fit.iterdir()))
    )


def _empty(target: Path) -> None:
    """Remove a run's files; ``published.json`` first, because it says that all are there."""
    for name in sorted(NAMES, key=lambda name: name != "published.json"):
        path = target / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
