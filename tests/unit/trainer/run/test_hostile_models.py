"""Models and runs that strangers made to hurt: refused before a library trusts what they say."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.errors import LlmperfError
from llmperf_common.families.source_sets import SourceSets
from trainer.baselines.feature_network import read_arrays
from trainer.baselines.forest import Forest
from trainer.baselines.trees_text import check_trees
from trainer.errors import BadInput
from trainer.registry import load_model
from trainer.run import loaded
from trainer.run.known_families import KnownFamilies
from trainer.run.loaded import load_run
from trainer.run.shipped import shipped_run

NUM_FEATURES = 5
PLAIN_RANGE, PACKED_RANGE = "training_range.json", "training_range.json.gz"


@pytest.fixture(scope="module")
def trees() -> str:
    lightgbm = pytest.importorskip("lightgbm")
    draw = np.random.default_rng(0)
    features = draw.random((300, NUM_FEATURES))
    times = features[:, 0] * 3 + features[:, 1]
    how = {"objective": "regression", "num_leaves": 7, "verbosity": -1, "num_threads": 1}
    data = lightgbm.Dataset(features, times)
    return str(lightgbm.train(how, data, num_boost_round=5).model_to_string())


def with_sizes(text: str) -> str:
    """Let the head say how long each tree is now."""
    body = text[: text.index("end of trees")]
    starts = [found.start() for found in re.finditer(r"^Tree=", body, re.MULTILINE)]
    ends = [*starts[1:], len(body)]
    sizes = " ".join(str(end - start) for start, end in zip(starts, ends, strict=True))
    return re.sub(r"tree_sizes=[\d ]*", f"tree_sizes={sizes}", text, count=1)


def test_trees_of_ours_are_read(trees: str) -> None:
    check_trees(trees, num_features=NUM_FEATURES)


@pytest.mark.parametrize(
    ("pattern", "becomes"),
    [
        (r"left_child=\S+", "left_child=99999999"), (r"left_child=\S+", "left_child=-99999999"), (r"left_child=\S+", "left_child=0"),
        (r"split_feature=\S+", "split_feature=999999"), (r"split_feature=\S+", "split_feature=-3"),
        (r"num_leaves=7", "num_leaves=700000"), (r"num_leaves=7", "num_leaves=1"), (r"num_leaves=7", "num_leaves=-7"),
        (r"num_leaves=7", "num_leaves=0"), (r"num_cat=0", "num_cat=9"), (r"is_linear=0", "is_linear=1"),
        (r"decision_type=\S+", "decision_type=1"), (r"leaf_value=\S+", "leaf_value="), (r"leaf_value=\S+ ", "leaf_value=x "),
        (r"threshold=\S+", "threshold=\0"), (r"max_feature_idx=4", "max_feature_idx=900000"), (r"num_class=1", "num_class=4000000"),
        (r"num_tree_per_iteration=1", "num_tree_per_iteration=0"), (r"Tree=0", "Tree=7"), (r"leaf_count=", "cat_boundaries=0 9\nleaf_count="),
        (r"feature_infos=\S+ ", "feature_infos="), (r"end of trees", "end of"), (r"shrinkage=\S+", "shrinkage=x"),
        (r"version=v4", "version=v4\nlinear_tree=1"), (r"Tree=0\n", "Tree=0\nnum_leaves=7\n"),
    ],
)  # fmt: skip
def test_trees_that_lead_elsewhere(trees: str, pattern: str, becomes: str) -> None:
    changed = re.sub(pattern, becomes.replace("\\", r"\\"), trees, count=1)
    assert changed != trees
    with pytest.raises(ValueError, match=r"tree|forest|unexpected line|a split"):
        check_trees(
            with_sizes(changed) if "end of trees" in changed else changed, num_features=NUM_FEATURES
        )


def test_sizes_of_trees_that_are_not_theirs(trees: str) -> None:
    with pytest.raises(ValueError, match="tree_sizes"):
        check_trees(
            re.sub(r"tree_sizes=\d+", "tree_sizes=9", trees, count=1), num_features=NUM_FEATURES
        )


def test_a_model_of_impossible_trees_is_refused(trees: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(
        json.dumps({"schema": 1, "name": "gbdt", "features": list("abcde"), "chosen": {}})
    )
    (tmp_path / "trees.txt").write_text(trees)
    assert load_model("gbdt", tmp_path).name == "gbdt"
    changed = with_sizes(re.sub(r"left_child=\S+", "left_child=99999999", trees, count=1))
    (tmp_path / "trees.txt").write_text(changed)
    with pytest.raises(BadInput, match="cannot be read"):
        load_model("gbdt", tmp_path)


@pytest.mark.slow
def test_arrays_that_unpack_too_far(tmp_path: Path) -> None:
    path = tmp_path / "forest.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("root.npy", "w", force_zip64=True) as file,
    ):
        header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (300000000,), }"
        header += b" " * (118 - len(header) - 1) + b"\n"
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for _ in range(1200):
            file.write(bytes(10**6))
    assert path.stat().st_size < 4 * 2**20
    with pytest.raises(ValueError, match="decompressed it would take"):
        read_arrays(path, Forest.types())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shipped = shipped_run()
    if shipped is None:
        pytest.skip("no model comes with this checkout")
    return shutil.copytree(shipped, tmp_path / "run")


@pytest.fixture
def trained_run(run: Path) -> Path:
    """The same with its training range as ``train`` writes it, not packed."""
    replace_range(run, PLAIN_RANGE, gzip.decompress((run / PACKED_RANGE).read_bytes()))
    return run


def replace_range(run: Path, name: str, content: bytes) -> None:
    """Put a training range in the place of the run's own."""
    for old in (PLAIN_RANGE, PACKED_RANGE):
        (run / old).unlink(missing_ok=True)
    (run / name).write_bytes(content)
    listed = json.loads((run / "published.json").read_text())
    files = {old: one for old, one in listed["files"].items() if not old.startswith(PLAIN_RANGE)}
    listed["files"] = {**files, name: {"bytes": len(content), "sha256": ""}}
    (run / "published.json").write_text(json.dumps(listed))


def files_of(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def test_files_of_a_run_that_are_none(run: Path) -> None:
    assert load_run(run).name
    for name in files_of(run):
        path = run / name
        kept = path.read_bytes()
        path.unlink()
        for make in (
            os.mkfifo,
            lambda one: one.symlink_to("/dev/zero"),
            lambda one: one.symlink_to("/etc/passwd"),
        ):
            make(path)
            with pytest.raises(
                BadInput,
                match=r"not a regular file|leads out|not finished|cannot be read|no trained",
            ):
                load_run(run)
            path.unlink()
        path.write_bytes(kept)
    assert load_run(run).name


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a\0b", "model/../../x"])
def test_a_run_lists_its_own_files_only(run: Path, name: str) -> None:
    path = run / "published.json"
    document = json.loads(path.read_text())
    document["files"][name] = {"bytes": 1, "sha256": ""}
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match="outside of the run"):
        load_run(run)


@pytest.mark.parametrize(
    "text",
    [
        "1e999",
        "NaN",
        "[" * 100_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "9" * 100_000,
        "",
        "[]",
        "\ufeff{}",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "conformal.json",
        "split.json",
        "training_range.json",
        "device.json",
        "published.json",
    ],
)
def test_json_of_a_run_that_is_none(trained_run: Path, name: str, text: str) -> None:
    run = trained_run
    (run / name).write_text(text)
    listed = json.loads((run / "published.json").read_text()) if name != "published.json" else {}
    if name in listed.get("files", {}):
        listed["files"][name]["bytes"] = (run / name).stat().st_size
        (run / "published.json").write_text(json.dumps(listed))
    with pytest.raises(LlmperfError):
        load_run(run)


def with_config(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a run's ``config.json``, and list its new size."""
    path = run / "config.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    listed = json.loads((run / "published.json").read_text())
    listed["files"][path.name]["bytes"] = path.stat().st_size
    (run / "published.json").write_text(json.dumps(listed))


def test_a_config_of_another_model_than_the_run_names(run: Path) -> None:
    with_config(run, lambda document: document["config"].update(model="log-linear"))
    with pytest.raises(
        BadInput, match=r"config\.json: its model is 'feature-ensemble', but its config is one of"
    ):
        load_run(run)


@pytest.mark.parametrize(
    "init",
    [{}, 5, [], "text", {"name": "a"}, {"name": "a", "digest": 5}, {"digest": ["a"]}],
    ids=str,
)
@pytest.mark.parametrize("named", ["feature-ensemble", "regressor"])
def test_initial_weights_that_are_none(run: Path, init: object, named: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document |= {"model": named, "init": init}
        document["config"] |= {"model": "regressor", "regressor": {"backbone": "codegen"}}

    with_config(run, change)
    with pytest.raises(BadInput, match=r"config\.json: (its model is|init has no name and digest)"):
        load_run(run)


@pytest.mark.parametrize("field", ["centre", "scale", "features"])
def test_a_training_range_that_disagrees_with_itself(trained_run: Path, field: str) -> None:
    run = trained_run
    path = run / "training_range.json"
    document = json.loads(path.read_text())
    document["static"][field].append(document["static"][field][0])
    path.write_text(json.dumps(document))
    listed = json.loads((run / "published.json").read_text())
    listed["files"][path.name]["bytes"] = path.stat().st_size
    (run / "published.json").write_text(json.dumps(listed))
    with pytest.raises(LlmperfError, match="training_range"):
        load_run(run)


def test_a_training_range_is_read_packed_or_not(run: Path) -> None:
    packed = load_run(run).known
    replace_range(run, PLAIN_RANGE, gzip.decompress((run / PACKED_RANGE).read_bytes()))
    plain = load_run(run).known
    assert (plain.names, plain.far) == (packed.names, packed.far)
    np.testing.assert_array_equal(plain.kernels, packed.kernels)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda packed: packed[:-9], "ends early"),
        (lambda packed: packed[:-8] + bytes(8), "damaged gzip"),
        (lambda packed: packed + b"more", "more data follows"),
        (lambda packed: b"{}" + packed, "damaged gzip"),
        (lambda packed: b"", "ends early"),
        (lambda packed: gzip.compress(b"[]"), "not a JSON object"),
        (lambda packed: gzip.compress(bytes(2**21 + 1)), "unpacks to more"),
    ],
)
def test_a_packed_training_range_that_is_none(
    run: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], says: str
) -> None:
    monkeypatch.setattr(loaded, "MAX_RANGE_BYTES", 2**21)
    replace_range(run, PACKED_RANGE, damage((run / PACKED_RANGE).read_bytes()))
    with pytest.raises(BadInput, match=says):
        load_run(run)


@pytest.mark.parametrize("name", ["source_sha256", "family_id", "fitted"])
def test_known_families_with_nulls(tmp_path: Path, name: str) -> None:
    known = KnownFamilies(
        sources=SourceSets.of_sources(["kernel void k(global int *a) { a[0] = 1; }"]),
        sha256=("00" * 32,),
        family_id=("f",),
        fitted=np.array([True]),
    )
    known.save(tmp_path)
    assert KnownFamilies.load(tmp_path) is not None
    path = tmp_path / "families.parquet"
    table = pq.read_table(path)
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, name, pa.nulls(1, table.schema.field(at).type)), path)
    with pytest.raises(ValueError, match=f"column {name} has nulls"):
        KnownFamilies.load(tmp_path)


@pytest.mark.parametrize(
    "field", ["max_allocation_bytes", "compute_units", "max_work_item_sizes", "name"]
)
def test_a_device_record_of_other_kinds(run: Path, field: str) -> None:
    path = run / "device.json"
    document = json.loads(path.read_text())
    document["devices"][0][field] = {"x": "many"}
    path.write_text(json.dumps(document))
    listed = json.loads((run / "published.json").read_text())
    listed["files"]["device.json"]["bytes"] = path.stat().st_size
    (run / "published.json").write_text(json.dumps(listed))
    with pytest.raises(BadInput, match="device record"):
        load_run(run)
