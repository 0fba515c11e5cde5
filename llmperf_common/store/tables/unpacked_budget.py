"""A limit on the memory of all shards of one table.

``parquet_memory.py`` limits one file. Many readers hold a whole table, so this module limits the
sum: a dataset of 1 MB must not take gigabytes.
"""

from __future__ import annotations

import pyarrow as pa

from llmperf_common.files.parquet_memory import MAX_RATIO
from llmperf_common.store.tables.shard import ShardError

ALWAYS_ALLOWED_BYTES = 2**29
"""Bytes of memory that the shards of one table may always take. Some readers hold a table twice for
a moment, and so take up to 1 GiB."""


class UnpackedBudget:
    """The bytes that the shards of one table may take in memory, all together.

    They may take ``MAX_RATIO`` times the bytes of the files that were read so far, or
    ``ALWAYS_ALLOWED_BYTES`` if that is more. The sizes that a manifest claims do not count.
    """

    def __init__(self) -> None:
        self._packed = 0
        self._taken = 0

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
        most = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * packed)
        if self._taken + rows.nbytes > most:
            raise ShardError(
                f"{name} is refused: with it, the shards of {name.split('/', 1)[0]} take "
                f"{(self._taken + rows.nbytes) >> 20:,} MiB of memory, more than the "
                f"{most >> 20:,} MiB that are allowed for files of their size; LLMPerf "
                "writes no such dataset: copy it from its source again"
            )
        self._packed = packed
        self._taken += rows.nbytes
