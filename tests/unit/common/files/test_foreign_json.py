"""JSON of strangers takes a bounded amount of memory, whatever characters and values it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from llmperf_common.files import foreign_json
from llmperf_common.files.foreign_json import parse_json
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ManifestError,
    ShardEntry,
    parse_manifest,
)
from tests.support.measured import GIB
from tests.support.own_memory import peak_bytes
from tests.support.sampling import slow_but_each

MIB = 2**20
EMOJI = "\U0001f600"
_READ = """
import sys
from pathlib import Path
from llmperf_common.files.foreign_json import parse_json
data = Path(sys.argv[1]).read_bytes()
try:
    parse_json(data)
except ValueError as error:
    assert "memory" in str(error), error
"""


# The documents are made of bytes, because a str would take four bytes for each character here, too.
def joined(values: Callable[[int], str], number: int, ends: bytes) -> bytes:
    return ends[:1] + b",".join(values(one).encode() for one in range(number)) + ends[1:]


def long_text(num_mib: int) -> bytes:
    return b'["' + b"a" * (num_mib * MIB) + EMOJI.encode() + b'"]'


def long_utf_16(num_mib: int) -> bytes:
    before, after = '["'.encode("utf-16"), f'{EMOJI}"]'.encode("utf-16-le")
    return before + b"a\0" * (num_mib * MIB) + after


BOMBS: dict[str, Callable[[], bytes]] = {
    "one wide character": lambda: long_text(71),
    "too many characters, one of them wide": lambda: long_text(72),
    "an escape": lambda: b'["' + b"a" * (71 * MIB) + b'\\ud83d\\ude00"]',
    "many wide keys": lambda: joined(lambda i: f'{{"{i:x}é":"{i:x}{EMOJI}"}}', 950_000, b"[]"),
    "many keys of one object": lambda: joined(lambda i: f'"{i:x}":{i}', 1_900_000, b"{}"),
    "many objects": lambda: joined(lambda i: f'{{"{i:x}":{i}.5}}', 1_200_000, b"[]"),
    "UTF-16": lambda: long_utf_16(35),
}


@pytest.mark.parametrize("name", slow_but_each(4, list(BOMBS)))
def test_a_document_takes_no_gigabyte(tmp_path: Path, name: str) -> None:
    (tmp_path / "document.json").write_bytes(BOMBS[name]())
    assert peak_bytes(_READ, tmp_path / "document.json") < 0.7 * GIB


@pytest.mark.parametrize("text", [EMOJI, "\\ud83d\\ude00"])
def test_a_wide_document_may_have_a_third_of_the_bytes(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(foreign_json, "MAX_MEMORY_BYTES", 10_000)
    assert parse_json(f'"{"a" * 3_000}"'.encode())
    assert parse_json(f'"{text}{"a" * 1_000}"'.encode())
    for document in (f'"{"a" * 4_000}"', f'"{text}{"a" * 2_000}"'):
        with pytest.raises(ValueError, match="of memory, more than the 0 MiB that are allowed"):
            parse_json(document.encode())


@pytest.mark.parametrize(("plan_hash", "most_shards"), [("p", 300_000), ("é", 190_000)])
def test_a_manifest_of_many_shards_is_read(
    monkeypatch: pytest.MonkeyPatch, plan_hash: str, most_shards: int
) -> None:
    """The limits are lowered with the number of shards, because 300,000 of them take 5 s."""
    num_shards = 6_000
    for name in ("MAX_MEMORY_BYTES", "MAX_VALUES"):
        limit = getattr(foreign_json, name)
        monkeypatch.setattr(foreign_json, name, limit * num_shards // most_shards)
    shards = [
        ShardEntry.of(f"samples/{number:064x}.parquet", b"data", rows=1000, tasks=1000)
        for number in range(num_shards)
    ]
    wanted = Manifest(version=1, plan_hash=plan_hash, epoch=1, shards=tuple(shards))
    assert parse_manifest(wanted.to_json(), "manifest-000001.json") == wanted
    twice = dataclasses.replace(wanted, shards=(*wanted.shards, *shards))
    with pytest.raises(ManifestError, match=r"of memory|more than .* values"):
        parse_manifest(twice.to_json(), "manifest-000001.json")
