"""Writing a file that appears whole or not at all, also in a folder where others may write."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a new, empty file beside ``target``, which takes the place of ``target`` at the end.

    If the block fails, the file is removed and ``target`` stays. The file's name is random and must
    not exist, so a link that another user has made cannot redirect the writing.

    Raises:
        OSError: The file cannot be created or moved.
    """
    temporary = target.with_name(f".llmperf-{secrets.token_hex(8)}.partial")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
