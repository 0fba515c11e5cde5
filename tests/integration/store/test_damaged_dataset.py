"""A dataset that something else has damaged: said clearly, never made worse, and mended where it can be."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmperf.exits import Exit
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.publish import publish
from llmperf_common.store.tables.reader import open_dataset
from tests.integration.conftest import Collected
from tests.support.in_process import assert_refused, llmperf
from tests.support.sampling import slow_but_each

READERS = (
    "status {data}",
    "dataset stats {data}",
    "dataset card {data}",
    "dataset export {data} --out {out}",
    "dataset merge {data} {copy} --out {out}",
    "train --data {data} --out {out}",
    "report {data} --out {out}.html",
)


def newest_manifest(data: Path) -> Path:
    return max(data.glob("manifest-*.json"))


def flip_a_byte(data: Path) -> Path:
    path = next((data / "samples").glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    return path


def remove_a_shard(data: Path) -> Path:
    path = next((data / "samples").glob("*.parquet"))
    path.unlink()
    return path


def cut_the_manifest(data: Path) -> Path:
    path = newest_manifest(data)
    path.write_bytes(path.read_bytes()[:100])
    return path


def garble_the_run(data: Path) -> Path:
    (data / "run.json").write_text("{", encoding="utf-8")
    return data / "run.json"


def raise_the_schema(data: Path) -> Path:
    path = data / "run.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, "schema_version": 99}), encoding="utf-8")
    return path


Damage = Callable[[Path], Path]
DAMAGES: tuple[Damage, ...] = (
    flip_a_byte,
    remove_a_shard,
    cut_the_manifest,
    garble_the_run,
    raise_the_schema,
)


def snapshot(data: Path) -> dict[str, bytes]:
    """Every shard, manifest and run.json there is."""
    files = [path for path in data.rglob("*") if path.suffix in (".parquet", ".json")]
    return {str(path.relative_to(data)): path.read_bytes() for path in files}


def samples(data: Path) -> dict[str, Any]:
    return {row["sample_id"]: row["time_ns"] for row in open_dataset(data).samples().to_pylist()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_reader_names_the_file_and_writes_nothing(
    copied: Collected, tmp_path: Path, damage: Damage
) -> None:
    copy = shutil.copytree(copied.out, tmp_path / "copy")
    damaged = damage(copied.out)
    for reader in READERS:
        words = reader.format(data=copied.out, copy=copy, out=tmp_path / "made")
        done = llmperf(*words.split())
        assert_refused(done, Exit.BAD_INPUT, damaged.name)
        assert any(word in done.err for word in ("restore", "move this file away", "upgrade")), (
            done.err
        )
    assert not (tmp_path / "made.html").exists()
    assert not (tmp_path / "made" / "run.json").exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_the_file(copied: Collected, damage: Damage) -> None:
    damaged = damage(copied.out)
    done = llmperf("dataset", "verify", copied.out)
    assert done.code == Exit.BAD_INPUT
    assert damaged.name in done.out
    done = llmperf("dataset", "verify", copied.out, "--json")
    document = json.loads(done.out)
    assert done.code == Exit.BAD_INPUT
    assert document["is_ok"] is False
    assert any(damaged.name in problem["name"] for problem in document["problems"])


@pytest.mark.parametrize("damage", DAMAGES)
def test_collect_leaves_a_damaged_dataset_as_it_is(copied: Collected, damage: Damage) -> None:
    damaged = damage(copied.out)
    before = snapshot(copied.out)
    done = copied.collect()
    assert done.code == Exit.BAD_INPUT, done.err
    assert damaged.name in done.err
    assert snapshot(copied.out) == before


@pytest.mark.parametrize("which", ["newest", "all"])
def test_a_manifest_moved_away_is_made_again_from_the_shards(copied: Collected, which: str) -> None:
    """What its error message tells to do. (The ledger said all was done, the sweep took it for orphans.)"""
    before = samples(copied.out)
    newest = newest_manifest(copied.out)
    for path in copied.out.glob("manifest-*.json"):
        if which == "all" or path == newest:
            path.unlink()
    done = copied.collect()
    assert done.code == 0, done.err
    assert "planned 12 = ok 12 + failed 0 + pending 0" in done.err
    assert samples(copied.out) == before
    assert llmperf("dataset", "verify", copied.out).code == 0


def remove_the_ledger(data: Path) -> None:
    for path in (data / "ledger").iterdir():
        path.unlink()


def garble_the_ledger(data: Path) -> None:
    next((data / "ledger").glob("*.sqlite")).write_bytes(b"no database")


def garble_pages_of_the_ledger(data: Path) -> None:
    path = next((data / "ledger").glob("*.sqlite"))
    content = path.read_bytes()
    path.write_bytes(content[:5000] + b"\xff" * 4000 + content[9000:])


@pytest.mark.parametrize(
    "damage", [remove_the_ledger, garble_the_ledger, garble_pages_of_the_ledger]
)
def test_a_damaged_ledger_costs_nothing(copied: Collected, damage: Callable[[Path], None]) -> None:
    before = samples(copied.out)
    damage(copied.out)
    done = copied.collect()
    assert done.code == 0, done.err
    assert samples(copied.out) == before
    assert llmperf("dataset", "verify", copied.out).code == 0


def test_a_shard_that_is_not_ours_is_left_alone(copied: Collected) -> None:
    foreign = copied.out / "samples" / "notes.parquet"
    foreign.write_bytes(b"of a user")
    assert copied.collect().code == 0
    assert foreign.read_bytes() == b"of a user"


def test_without_run_json_nothing_is_overwritten(copied: Collected) -> None:
    (copied.out / "run.json").unlink()
    before = snapshot(copied.out)
    assert_refused(copied.collect(), Exit.USAGE, "no run.json", "choose an empty or new folder")
    assert snapshot(copied.out) == before


@pytest.mark.parametrize("damage", slow_but_each(2, [flip_a_byte, remove_a_shard]))
def test_repair_sets_a_bad_shard_aside_and_the_next_collect_does_its_tasks_again(
    copied: Collected, tmp_path: Path, damage: Damage
) -> None:
    before = samples(copied.out)
    damage(copied.out)
    for words in ("status {}", "train --data {} --out {}-run", "dataset stats {}"):
        done = llmperf(*words.format(copied.out, copied.out).split())
        assert_refused(done, Exit.BAD_INPUT, f"llmperf dataset repair {copied.out}")
    assert_refused(copied.collect(), Exit.BAD_INPUT, f"llmperf dataset repair {copied.out}")

    dry = json.loads(llmperf("dataset", "repair", copied.out, "--dry-run", "--json").out)
    assert dry["is_dry_run"]
    done = llmperf("dataset", "repair", copied.out, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert len(report["dropped"]) == len(dry["dropped"]) == 2
    assert report["num_freed_tasks"] == dry["num_freed_tasks"] > 0
    left = samples(copied.out)
    assert left.items() <= before.items()
    assert len(left) < len(before)
    assert llmperf("dataset", "verify", copied.out).code == 0
    assert "nothing to repair" in llmperf("dataset", "repair", copied.out).err

    done = copied.collect()
    assert done.code == 0, done.err
    assert "planned 12 = ok 12 + failed 0 + pending 0" in done.err
    assert samples(copied.out).keys() == before.keys()
    assert llmperf("dataset", "verify", copied.out).code == 0


def test_a_device_that_was_set_aside_is_measured_again(copied: Collected) -> None:
    before = samples(copied.out)
    device = next((copied.out / "devices").glob("*.parquet"))
    device.write_bytes(device.read_bytes()[:-40] + b"x" * 40)
    assert llmperf("dataset", "repair", copied.out).code == 0
    done = copied.collect()
    assert done.code == 0, done.err
    assert samples(copied.out) == before
    assert llmperf("dataset", "verify", copied.out).code == 0


def test_a_doubled_dataset_is_singled_and_collects_on(copied: Collected) -> None:
    """What an outdated ledger has left: tasks that two published shards hold."""
    before = samples(copied.out)
    fs = PosixFilesystem(copied.out)
    dataset = open_dataset(copied.out)
    entries = []
    for table in ("kernels", "samples"):
        first = dataset.shards(table)[0]
        name = f"{table}/again.parquet"
        fs.put_if_absent(name, fs.read_bytes(first.name))
        entries.append(dataclasses.replace(first, name=name))
    publish(fs, entries, plan_hash=dataset.manifest.plan_hash, epoch=dataset.manifest.epoch)
    assert llmperf("dataset", "verify", copied.out).code == Exit.BAD_INPUT
    assert llmperf("dataset", "repair", copied.out).code == 0
    assert samples(copied.out) == before
    assert llmperf("dataset", "verify", copied.out).code == 0
    done = copied.collect()
    assert done.code == 0, done.err
    assert samples(copied.out) == before
