"""The shipped shard functions, remembered: encoding and decoding are pure, and 5 ms each is too long here.

Each memo is keyed by the whole input that its answer depends on. A shard's name enters only its name (checked by a
test), so two stems share the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pyarrow as pa

from llmperf_common.records import TaskResult
from llmperf_common.store.tables import shard
from llmperf_common.store.tables.shard import Footer, ShardFile

_SIZE = 8192


@functools.lru_cache(maxsize=_SIZE)
def _pair(
    results: tuple[TaskResult, ...], tokens: tuple[int, ...], plan_hash: str, epoch: int
) -> tuple[ShardFile, ShardFile]:
    return shard.encode_results("stem", results, tokens, plan_hash=plan_hash, epoch=epoch)


def encode_results(
    stem: str,
    results: Sequence[TaskResult],
    tokens: Sequence[int],
    *,
    plan_hash: str,
    epoch: int,
) -> tuple[ShardFile, ShardFile]:
    """Return what the shipped ``encode_results`` returns."""
    first, second = (
        ShardFile(
            name=file.name.replace("/stem.", f"/{stem}."),
            data=file.data,
            rows=file.rows,
            tasks=file.tasks,
        )
        for file in _pair(tuple(results), tuple(tokens), plan_hash, epoch)
    )
    return first, second


@functools.lru_cache(maxsize=_SIZE)
def _decoded(data: bytes, table: str) -> tuple[pa.Table, Footer]:
    return shard.decode(data, f"{table}/shard")


def decode(data: bytes, name: str) -> tuple[pa.Table, Footer]:
    """Return what the shipped ``decode`` returns; of the name only the table matters, and messages."""
    return _decoded(data, name.split("/", 1)[0])


@functools.lru_cache(maxsize=_SIZE)
def _footer(data: bytes) -> Footer:
    return shard.read_footer(data, "shard")


def read_footer(data: bytes, name: str) -> Footer:
    """Return what the shipped ``read_footer`` returns."""
    del name
    return _footer(data)
