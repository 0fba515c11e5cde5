"""Check names of unknown origin that become file names: ids in rows, and shards in manifests.

A name that is absolute, contains ``..`` or has unusual characters could name a file elsewhere.
"""

from __future__ import annotations

import re

_SHARD = re.compile(r"[A-Za-z0-9_-]{1,32}/[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,200}\.parquet", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:+-]{0,127}", re.ASCII)


def checked_shard_name(name: object) -> str:
    """Return ``name`` if it is a valid name of a shard: folder and file. Raises ValueError.

    >>> checked_shard_name("samples/one.parquet")
    'samples/one.parquet'
    """
    if not isinstance(name, str) or _SHARD.fullmatch(name) is None:
        raise ValueError(f"{_shown(name)} is not a name of a shard (FOLDER/NAME.parquet)")
    return name


def checked_id(value: object, what: str) -> str:
    """Return ``value`` if it is an id that is safe in a file name. Raises ValueError.

    >>> checked_id("a1b2", "device_id")
    'a1b2'
    """
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise ValueError(
            f"{what} {_shown(value)} is not an id: only letters, digits and the characters '._:+-' "
            "are allowed"
        )
    return value


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
