"""A limit on the memory of all shards of one table.

``parquet_memory.py`` limits one file. Many readers hold a whole table, so this module limits the
sum: a dataset of 1 MB must not take gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from llmperf_common.files.parquet_memory import MAX_RATIO
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.tables.shard import ShardError

ALWAYS_ALLOWED_BYTES = 2**29
"""Half of what a small dataset may take, because some readers hold a table twice for a moment."""


class UnpackedBudget:
    """The bytes that the shards of one table may take in memory, all together.

    Args:
        shards: the table's shards. A dataset may take ``MAX_RATIO`` times the bytes of its files,
            or ``ALWAYS_ALLOWED_BYTES`` if that is more.
    """

    def __init__(self, shards: Iterable[ShardEntry]) -> None:
        self._most = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * sum(entry.bytes for entry in shards))
        self._taken = 0

    def take(self, rows: pa.Table, name: str) -> None:
        """Count the rows of the shard ``name``; one above the limit is not counted.

        Raises:
            ShardError: The shards would take too much memory.
        """
        if self._taken + rows.nbytes > self._most:
            raise ShardError(
                f"{name} is refused: with it, the shards of {name.split('/', 1)[0]} take "
                f"{(self._taken + rows.nbytes) >> 20:,} MiB of memory, more than the "
                f"{self._most >> 20:,} MiB that are allowed for files of their size; LLMPerf "
                "writes no such dataset: copy it from its source again"
            )
        self._taken += rows.nbytes
