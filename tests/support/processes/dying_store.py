"""A process that is killed during its work on a dataset, at a chosen change of the store.

``python -m tests.support.processes.dying_store STEP llmperf ARGUMENTS…`` runs a command that gets SIGKILL
instead of making one change (create, replace, remove), as could happen between any two system
calls. STEP is the number of the change, from 1, or a part of the name that it changes. With STEP 0
the process survives and writes a line for each change to the file that ``DYING_STORE_LOG`` names.
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
"""Variable with the id of another process to kill instead; the change then happens."""


def shorten_lists() -> None:
    """Let each version make a segment and remove an old version, as long runs do at times."""
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
    """Return whether a change counts: not those of locks, whose heartbeats have no fixed order."""
    return "lock/" not in name and "probe-" not in name


if __name__ == "__main__":
    shorten_lists()
    plant(sys.argv[1], is_no_lock)
    from llmperf.cli.main import run

    sys.argv = sys.argv[2:]
    run()
