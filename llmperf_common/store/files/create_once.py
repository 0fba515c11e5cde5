"""Test whether a store really refuses to create a file that exists, before a dataset is kept there.

Owns that test. The exactly-once guarantee rests on ``put_if_absent``. But some object stores ignore
its condition and silently overwrite the file, and some mounted folders lack hard links.
"""

from __future__ import annotations

import secrets

from llmperf_common.store.files.filesystem import TEMPORARY_PREFIX, Filesystem, StoreError

_ATTEMPTS = 3


def check_creates_once(fs: Filesystem) -> None:
    """Create a hidden file twice, check the outcomes and remove the file.

    Raises:
        StoreError: The store overwrites existing files, or cannot be written.
    """
    # Repeat a failed test, because another process's sweep may have removed the file between the
    # two writes.
    if not any(_creates_once(fs) for _ in range(_ATTEMPTS)):
        raise StoreError(
            f"{fs.describe()} cannot keep a dataset: its store overwrites a file that was to be "
            "created only if absent (it ignores If-None-Match), so results could be lost or "
            "doubled: choose a store with conditional writes "
            "(Amazon S3 has them) or a local folder"
        )


def _creates_once(fs: Filesystem) -> bool:
    name = f"{TEMPORARY_PREFIX}probe-{secrets.token_hex(8)}"
    try:
        outcomes = [fs.put_if_absent(name, b"first"), fs.put_if_absent(name, b"second")]
        return outcomes == [True, False] and fs.read_bytes(name) == b"first"
    except FileNotFoundError:
        return False
    finally:
        fs.remove(name)
