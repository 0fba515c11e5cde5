"""A process that is killed amid its work on a dataset, at a chosen change of the store.

``python -m tests.support.dying_store STEP llmperf ARGUMENTS…`` runs a command of which one change (create, replace, remove)
never happens: SIGKILL comes instead, as between any two system calls. STEP is its number, from 1, or a part of
the name that it changes. With STEP 0 the process survives and writes its changes to the file
``DYING_STORE_LOG``, a line each.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.files.s3 import S3Filesystem
from llmperf_common.store.manifests import segments, versions

CHANGES = ("put_if_absent", "replace", "remove")
LOG_VARIABLE = "DYING_STORE_LOG"
VICTIM_VARIABLE = "DYING_STORE_VICTIM"
"""The process that is killed in its place, by its id; the change then happens."""


def shorten_lists() -> None:
    """Let each version of a run have a new segment, and an old version that it removes, as those of a long one now and then."""
    segments.SEALED_AT, segments.FANOUT = 1, 2
    versions.NUM_RECENT, versions.KEPT_FOR_S = 1, 0


def plant(step: str, is_counted: Callable[[str], bool]) -> None:
    """Kill this process at the counted change that ``step`` names."""
    counter = itertools.count(1)
    counting = threading.Lock()
    log = os.environ.get(LOG_VARIABLE)
    victim = int(os.environ.get(VICTIM_VARIABLE, os.getpid()))

    def wrap(kind: Any, operation: str) -> None:
        original = getattr(kind, operation)

        def change(self: Any, name: str, *data: bytes) -> Any:
            if is_counted(name):
                with counting:
                    number = next(counter)
                    if str(number) == step or (not step.isdigit() and step in name):
                        os.kill(victim, signal.SIGKILL)
                    if log:
                        with Path(log).open("a", encoding="utf-8") as file:
                            file.write(f"{operation} {name}\n")
            return original(self, name, *data)

        setattr(kind, operation, change)

    for kind in (PosixFilesystem, S3Filesystem):
        for operation in CHANGES:
            wrap(kind, operation)


def is_no_lock(name: str) -> bool:
    """Heartbeats come when they come: only what is written of the dataset is counted."""
    return "lock/" not in name and "probe-" not in name


if __name__ == "__main__":
    shorten_lists()
    plant(sys.argv[1], is_no_lock)
    from llmperf.cli.main import run

    sys.argv = sys.argv[2:]
    run()
