"""The lock on a run's folder during a training, and what happens to the folder's content.

Owns who may write to the folder, and the removal of its content when a training fails before there
is anything to resume.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import RunExists
from trainer.run.folder import NAMES, PREPARED_FOLDER, Stage, check_free, has_identity, stage_of


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
    with _locked(target, out):
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


def is_held(out: Path) -> bool:
    """Return whether another process holds the lock on the folder of a run."""
    try:
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # the file system has no locks
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _locked(target: Path, out: Path) -> Iterator[None]:
    # The lock is on the folder itself: no file remains, and a killed process releases the lock.
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunExists(
                f"--out {out}: another `llmperf train` works in this folder: wait until it ends, "
                "or name a new folder"
            ) from None
        except OSError:
            pass  # the file system has no locks: users must avoid two trainings in one folder
        yield
    finally:
        os.close(descriptor)


def _empty(target: Path) -> None:
    """Remove a run's files, ``published.json`` first: a half-removed run is not published."""
    for name in sorted(NAMES, key=lambda name: name != "published.json"):
        path = target / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
