"""Asking a store, before anything is trusted to it, whether it can create a name only once.

Owns that one question. Exactly-once rests on ``put_if_absent``; some object stores ignore its condition and overwrite
without a word, some mounted folders have no hard links.
"""

from __future__ import annotations

import secrets

from llmperf_common.store.files.filesystem import TEMPORARY_PREFIX, Filesystem, StoreError

_ATTEMPTS = 3


def check_creates_once(fs: Filesystem) -> None:
    """Create a hidden file twice and remove it.

    Raises:
        StoreError: The store overwrites what exists, or cannot be written.
    """
    # A colleague's sweep may take the file away between the two writes: then another one decides.
    if not any(_creates_once(fs) for _ in range(_ATTEMPTS)):
        raise StoreError(
            f"{fs.describe()} cannot keep a dataset: its store overwrites a file that was to be created only if absent "
            "(it ignores If-None-Match), so results could be lost or doubled: take a store with conditional writes "
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
