"""The digest of ``train --init FOLDER``: a change of any file that the training reads changes it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from trainer.errors import BadInput
from trainer.life.identity import init_of, weights_in
from trainer.regressor.checkpoint_files import weight_files

READ = (
    "config.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "model.safetensors",
)
SHARDS = {"a": "one.safetensors", "b": "elsewhere/two.safetensors", "c": "absent.safetensors"}
INDEX = json.dumps({"weight_map": SHARDS})
LAYOUTS: dict[str, tuple[str, ...]] = {
    "safetensors": ("model.safetensors", "pytorch_model.bin", "optimizer.bin", "head.safetensors"),
    "safetensors and an index": ("model.safetensors", "model.safetensors.index.json"),
    "safetensors in shards": ("model.safetensors.index.json", "pytorch_model.bin"),
    "pickle": ("pytorch_model.bin", "pytorch_model.bin.index.json", "training_args.bin"),
    "pickles in shards": ("pytorch_model.bin.index.json", "head.safetensors"),
}


def folder_of(place: Path, *names: str) -> Path:
    place.mkdir(exist_ok=True)
    for name in ("config.json", *names):
        (place / name).write_text("{}")
    return place


@pytest.mark.parametrize("name", READ)
def test_each_file_that_is_read_is_part_of_the_identity(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "a", *READ)
    first = init_of(folder).digest
    assert init_of(Path(shutil.copytree(folder, tmp_path / "b"))).digest == first
    (folder / name).write_text("[]")
    assert init_of(folder).digest != first
    (folder / name).write_text("{}")
    assert init_of(folder).digest == first
    if name != "config.json":
        (folder / name).unlink()
        assert init_of(folder).digest != first


@pytest.mark.parametrize("place", [0, 300_000, 2_500_000, 5 * 2**20 - 1])
def test_one_byte_of_the_weights_is_enough(tmp_path: Path, place: int) -> None:
    """Pieces of 256 KiB were hashed: two checkpoints that differed between them were one."""
    folder = folder_of(tmp_path, "tokenizer.json")
    content = bytearray(5 * 2**20)
    (folder / "model.safetensors").write_bytes(content)
    first = init_of(folder).digest
    content[place] = 1
    (folder / "model.safetensors").write_bytes(content)
    assert init_of(folder).digest != first


def test_a_byte_that_moves_to_the_next_file_is_seen(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "model.safetensors.index.json")
    (folder / "model.safetensors.index.json").write_text(INDEX)
    found = set()
    for one, two in (("ab", "c"), ("a", "bc"), ("c", "ab")):
        (folder / "one.safetensors").write_text(one)
        (folder / "two.safetensors").write_text(two)
        found.add(init_of(folder).digest)
    assert len(found) == 3


@pytest.mark.parametrize("name", ["README.md", "head.safetensors", "optimizer.bin", "x.gguf"])
def test_a_file_that_is_not_read_is_no_part_of_the_identity(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path, *READ)
    first = init_of(folder).digest
    (folder / name).write_text("another")
    assert init_of(folder).digest == first


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_weights_are_those_that_are_loaded(tmp_path: Path, layout: str) -> None:
    folder = folder_of(tmp_path, *LAYOUTS[layout], "one.safetensors", "two.safetensors")
    for index in folder.glob("*.index.json"):
        index.write_text(INDEX)
    loaded = weight_files(folder)
    assert weights_in(folder) == loaded
    for path in (one for one in loaded if one.exists()):
        first = init_of(folder).digest
        path.write_text("another")
        assert init_of(folder).digest != first


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_left_to_the_loader(tmp_path: Path, index: str) -> None:
    folder = folder_of(tmp_path)
    (folder / "model.safetensors.index.json").write_text(index)
    assert weights_in(folder) == []
    assert init_of(folder).digest


@pytest.mark.parametrize("shard", ["a\0b", "\ud800", "..", "", "a" * 300])
def test_a_shard_that_is_no_name_of_a_file(tmp_path: Path, shard: str) -> None:
    folder = folder_of(tmp_path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(BadInput, match=f"{folder}"):
        init_of(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "one.safetensors"])
@pytest.mark.timeout(20)
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path, "model.safetensors.index.json")
    (folder / "model.safetensors.index.json").write_text(INDEX)
    os.mkfifo(folder / name)
    with pytest.raises(BadInput, match=f"--init {folder}: .*{name} is not a regular file"):
        init_of(folder)


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [("config.json", 2**25), ("tokenizer.json", 2**25), ("one.safetensors", 2**38)],
)
def test_a_file_above_the_limit_is_refused_before_it_is_hashed(
    tmp_path: Path, name: str, num_bytes: int
) -> None:
    folder = folder_of(tmp_path, "model.safetensors.index.json", name)
    (folder / "model.safetensors.index.json").write_text(INDEX)
    with (folder / name).open("ab") as file:
        file.truncate(num_bytes + 1)
    with pytest.raises(BadInput, match=f"--init {folder}: .*{num_bytes}"):
        init_of(folder)


def test_links_to_files_outside_of_the_folder_are_followed(tmp_path: Path) -> None:
    """The folders of Hugging Face's cache hold links to files of another folder."""
    blobs = folder_of(tmp_path / "blobs", "model.safetensors")
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in blobs.iterdir():
        (linked / path.name).symlink_to(path)
    assert init_of(linked).digest == init_of(blobs).digest


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no config"):
        init_of(tmp_path)
    with pytest.raises(BadInput, match="no such folder"):
        init_of(tmp_path / "absent")
