"""A run's folder while a training works in it: one at a time, resumed if it is the same run.

Owns who may write into the folder and what becomes of it when a training fails before it has anything that
could be resumed.
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
    """Hold the folder of a run, made if it is not there, for as long as the block runs.

    Another run in it is removed if ``overwrite`` allows that; the same run is left as it is, unless it is
    published and ``overwrite`` asks to train it anew. If the block fails before anything was prepared, what
    it wrote is removed.

    Raises:
        OutputTaken: The folder holds something that is no run (``RunExists``: another run, or another
            process trains in it).
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
    """Whether another process holds the folder of a run now."""
    try:
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _locked(target: Path, out: Path) -> Iterator[None]:
    # The folder itself is locked: no file is left behind, and the lock goes with a killed process.
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunExists(
                f"--out {out}: another `llmperf train` works in this folder: wait for it, or name a new one"
            ) from None
        except OSError:
            pass  # a file system without locks: two trainings there are the user's to avoid
        yield
    finally:
        os.close(descriptor)


def _empty(target: Path) -> None:
    """Remove what runs write, ``published.json`` first: a half-removed run is not taken for a whole one."""
    for name in sorted(NAMES, key=lambda name: name != "published.json"):
        path = target / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
