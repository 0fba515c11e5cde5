"""The run lock of a dataset: shared by collectors, exclusive for sweep, compact, repair, merge.

Owns the wait for the lock, and the message while a process waits for this or another lock.
``run.py`` and ``sweep.py`` say what the lock protects.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.lock_holders import lock_holders, who_holds
from llmperf_common.store.manifests.run import RUN_LOCK

_log = logging.getLogger(__name__)
_ATTEMPTS = 5
_POLL_S = 0.2


class CollectingError(StoreError):
    """Collectors, or another command that changes datasets, are at work on the dataset."""


@contextlib.contextmanager
def alone(fs: Filesystem, what: str) -> Iterator[None]:
    """Hold the run lock exclusively.

    Args:
        fs: the dataset.
        what: the caller's action as a verb for the message, such as ``compact``.

    Raises:
        CollectingError: Another process is at work on the dataset; the message names it.
    """
    holders = ""
    for _ in range(_ATTEMPTS):  # wait a little: `verify` and `status` hold the lock for a moment
        with fs.lock(RUN_LOCK, exclusive=True, wait=False) as is_alone:
            if is_alone:
                yield
                return
            holders = who_holds(fs, RUN_LOCK)
        time.sleep(_POLL_S)
    raise CollectingError(
        f"{fs.describe()} is in use by {holders}: wait until `llmperf status` shows "
        f"no collector at work, then {what} it"
    )


@contextlib.contextmanager
def beside_others(fs: Filesystem) -> Iterator[None]:
    """Hold the run lock shared, as collectors do; wait for an exclusive holder and log its name."""
    with contextlib.ExitStack() as stack:
        for _ in range(_ATTEMPTS):
            with contextlib.ExitStack() as attempt:
                if attempt.enter_context(fs.lock(RUN_LOCK, exclusive=False, wait=False)):
                    stack.push(attempt.pop_all())
                    break
            time.sleep(_POLL_S)
        else:
            _log.warning("%s: waiting for %s", fs.describe(), who_holds(fs, RUN_LOCK))
            stack.enter_context(fs.lock(RUN_LOCK, exclusive=False, wait=True))
        yield


@contextlib.contextmanager
def naming_holders(fs: Filesystem, name: str) -> Iterator[None]:
    """Log which other process holds the lock ``name`` if the ``with`` block takes long.

    The block itself takes the lock, so if it takes long, it is probably waiting for the lock.
    """

    def tell() -> None:
        if others := lock_holders(fs, name):
            _log.warning("%s: waiting for %s", fs.describe(), ", ".join(map(str, others)))

    timer = threading.Timer(_ATTEMPTS * _POLL_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
