"""A limit on the memory of all shards of one table.

``parquet_memory.py`` limits one file. Many readers hold a whole table, so this module limits the
sum: a dataset of 1 MB must not take many gigabytes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.files.parquet_memory import MAX_RATIO
from llmperf_common.store.tables.shard import ShardError

ALWAYS_ALLOWED_BYTES = 2**29
"""Bytes of memory that a table may always take, without repeated sources. Some readers hold a table
twice for a moment, and so take up to 1 GiB."""
ALLOWED_REPEATED_BYTES = 2**30
"""Bytes of memory that repeated sources may take in addition. Each kernel's row holds the whole
source file, so a file of 713 KiB with 900 kernels takes 628 MiB, but packs into 1 MB."""
_REPEATED_COLUMN = "source"


class UnpackedBudget:
    """The bytes that the shards of one table may take in memory, all together.

    They may take ``MAX_RATIO`` times the bytes of the files that were read so far, or
    ``ALWAYS_ALLOWED_BYTES`` if that is more. A source that a shard holds several times counts once
    for this limit. Its other copies have a limit of their own, or what the first limit leaves. The
    sizes that a manifest claims do not count.
    """

    def __init__(self) -> None:
        self._packed = 0
        self._distinct = 0
        self._repeated = 0

    def take(self, rows: pa.Table, name: str, packed_bytes: int) -> None:
        """Add the rows of the shard ``name``; refuse a shard with which the limit is exceeded.

        Args:
            rows: the shard's rows, or some of their columns.
            name: the shard's name, for the message.
            packed_bytes: the size of the file, as read.

        Raises:
            ShardError: The shards would take too much memory.
        """
        packed = self._packed + packed_bytes
        repeats = _repeated_bytes(rows)
        repeated = self._repeated + repeats
        distinct = self._distinct + rows.nbytes - repeats
        most = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * packed)
        if distinct > most or distinct + repeated > most + ALLOWED_REPEATED_BYTES:
            raise ShardError(
                f"{name} is refused: with it, the shards of {name.split('/', 1)[0]} take "
                f"{(distinct + repeated) >> 20:,} MiB of memory ({repeated >> 20:,} MiB for repeated "
                f"sources), more than the {most >> 20:,} MiB that are allowed for files of their "
                f"size and {ALLOWED_REPEATED_BYTES >> 20:,} MiB for repeated sources: if the "
                "dataset is foreign, copy it from its source again; if it is your own, collect a "
                "corpus with smaller source files"
            )
        self._packed, self._distinct, self._repeated = packed, distinct, repeated


def _repeated_bytes(rows: pa.Table) -> int:
    """Return the bytes of the sources that ``rows`` holds once more."""
    if _REPEATED_COLUMN not in rows.column_names:
        return 0
    column = rows.column(_REPEATED_COLUMN)
    once = pc.sum(pc.binary_length(pc.unique(column))).as_py() or 0
    return (pc.sum(pc.binary_length(column)).as_py() or 0) - once
