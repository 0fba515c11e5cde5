"""Evaluation: which rows it takes, what it refuses, what it stamps."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common import ids
from llmperf_common.config import ConfigError
from llmperf_common.files.outputs import OutputTaken
from tests.support.factories.synthetic_dataset import make_dataset, take_out, trained
from trainer.config import load_train_config
from trainer.data.dataset import TrainingData, data_from_tables
from trainer.errors import BadInput, SeenRows
from trainer.evaluation.evaluate import evaluate, evaluation_parts
from trainer.evaluation.joined_families import join_families
from trainer.life.fitting import COMPARISONS
from trainer.life.train import train
from trainer.run.loaded import LoadedRun, load_run


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return load_run(trained()[2].folder)


@pytest.mark.parametrize("split", ["test", "validation", "calibration"])
def test_unseen_parts_repeat_the_training_s_numbers(run, split, tmp_path):
    _, data, summary = trained()
    found = evaluate(run, data, split, tmp_path / "out")
    assert found.metrics["parts"] == {split: summary.metrics["parts"][split]}
    assert not found.seen
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == found.metrics
    table = pq.read_table(tmp_path / "out" / "predictions.parquet")
    assert set(table.column("split").to_pylist()) == {split}
    assert set(table.column("model").to_pylist()) == {"gbdt", *COMPARISONS}
    assert "SEEN" not in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize("split", ["train", "seen_configs", "all"])
def test_seen_families_need_leave_and_are_stamped(run, split, tmp_path):
    _, data, _ = trained()
    with pytest.raises(SeenRows, match="--allow-seen") as caught:
        evaluate(run, data, split, tmp_path / "out")
    assert isinstance(caught.value, BadInput)
    assert not (tmp_path / "out").exists()
    found = evaluate(run, data, split, tmp_path / "out", allow_seen=True)
    assert found.seen
    assert found.metrics["seen"]
    assert found.table.startswith("**SEEN")
    assert (tmp_path / "out" / "table.md").read_text() == found.table
    metadata = pq.read_table(tmp_path / "out" / "predictions.parquet").schema.metadata
    assert b"llmperf.stamp" in metadata
    expected = len(data) if split == "all" else trained()[2].num_rows[split]
    assert found.num_rows == expected


def test_another_dataset_is_all_test(run, tmp_path):
    fresh = make_dataset(num_kernels=5, num_configs=12, seed=9, first=500).data()
    found = evaluate(run, fresh, "test", tmp_path / "out")
    assert found.num_rows == len(fresh)
    assert not found.seen
    block = found.metrics["parts"]["test"]["gbdt"]["all"]
    assert block["spearman_mean"] > 0.8
    with pytest.raises(BadInput, match="no ok row of this part"):
        evaluate(run, fresh, "validation", tmp_path / "none")


def test_rows_of_another_device_class_are_refused(run, tmp_path):
    data = make_dataset(num_kernels=5, num_configs=12, seed=9, first=500).data()

    def moved(table):
        place = table.column_names.index("device_class")
        return table.set_column(
            place, table.schema.field("device_class"), pa.array(["h200"] * len(table))
        )

    other = data_from_tables(
        moved(data.rows.samples),
        moved(data.rows.kernels),
        moved(data.devices),
        identity=dict(data.identity),
    )
    with pytest.raises(
        BadInput, match=r"rows of h200 \(\d+ rows\); the model was trained on synth"
    ):
        evaluate(run, other, "test", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def renamed(data, old: str, new: str):
    """The dataset after a merge gave the family ``old`` the id ``new``."""
    kernels = data.rows.kernels
    families = [new if name == old else name for name in kernels.column("family_id").to_pylist()]
    place = kernels.column_names.index("family_id")
    return data_from_tables(
        data.rows.samples,
        kernels.set_column(place, kernels.schema.field("family_id"), pa.array(families)),
        data.devices,
        identity=dict(data.identity),
    )


def test_a_family_renamed_by_a_merge_is_still_seen(run, tmp_path):
    _, data, _ = trained()
    old = sorted(run.split.parts["train"])[0]
    merged = renamed(data, old, "0" * 20)
    parts, seen = evaluation_parts(run, merged, join_families(run, merged))
    inside = merged.family_id == "0" * 20
    assert np.all(seen[inside])
    assert set(parts[inside].tolist()) == {"seen_configs"}
    assert evaluate(run, merged, "test", tmp_path / "out").num_rows == trained()[2].num_rows["test"]


def test_a_test_family_that_merged_with_a_fitted_one_is_refused(run, tmp_path):
    _, data, _ = trained()
    fitted, held_out = run.split.parts["train"][0], run.split.parts["test"][0]
    merged = renamed(data, fitted, held_out)
    with pytest.raises(SeenRows):
        evaluate(run, merged, "test", tmp_path / "out")


def test_unknown_split_names_are_listed(run, tmp_path):
    with pytest.raises(ConfigError, match="validation"):
        evaluate(run, trained()[1], "tset", tmp_path / "out")


def test_only_an_earlier_evaluation_is_replaced(run, tmp_path):
    _, data, _ = trained()
    out = tmp_path / "out"
    evaluate(run, data, "test", out)
    evaluate(run, data, "validation", out)
    assert json.loads((out / "metrics.json").read_text())["split"] == "validation"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(OutputTaken, match="holds no evaluation"):
        evaluate(run, data, "test", tmp_path / "other")


def test_a_config_split_evaluates_its_own_test_and_refuses_its_train(tmp_path):
    data = make_dataset(num_kernels=3, num_configs=40, first=1).data()
    config = load_train_config("log-linear", overrides=["split.kind=config"])
    summary = train(data, config, tmp_path / "run", lambda _line: None)
    loaded = load_run(tmp_path / "run")
    found = evaluate(loaded, data, "test", tmp_path / "out")
    assert found.num_rows == summary.num_rows["test"]
    with pytest.raises(SeenRows):
        evaluate(loaded, data, "train", tmp_path / "out2")


def copied(data: TrainingData, *, source) -> TrainingData:
    """The dataset as if collected later from copies: other ids and families, and ``source(old)`` for sources."""
    kernels = data.rows.kernels
    texts = [source(text) for text in kernels.column("source").to_pylist()]
    hashes = [ids.sha256_hex((text or "").encode()) for text in texts]
    fresh = [f"g{one[1:]}" for one in kernels.column("kernel_id").to_pylist()]
    for name, values in (
        ("source", texts),
        ("source_sha256", hashes),
        ("kernel_id", fresh),
        ("family_id", fresh),
    ):
        place = kernels.column_names.index(name)
        field = kernels.schema.field(name)
        kernels = kernels.set_column(place, field, pa.array(values, field.type))
    samples = data.rows.samples
    place = samples.column_names.index("kernel_id")
    moved = [f"g{one[1:]}" for one in samples.column("kernel_id").to_pylist()]
    samples = samples.set_column(place, samples.schema.field("kernel_id"), pa.array(moved))
    return data_from_tables(samples, kernels, data.devices, identity=dict(data.identity))


def renamed_variables(text: str) -> str:
    renames = {"x": "input", "y": "output", "a": "total", "i": "gid"}
    return re.sub(r"\b[xyai]\b", lambda match: renames[match[0]], text) + "// a copy\n"


def test_a_renamed_copy_collected_later_counts_as_what_its_original_is(run, tmp_path):
    _, data, summary = trained()
    copy = copied(data, source=renamed_variables)
    assert not set(copy.family_id) & set(data.family_id)
    own, _ = evaluation_parts(run, data, join_families(run, data))
    parts, seen = evaluation_parts(run, copy, join_families(run, copy))
    expected = np.where(own == "train", "seen_configs", own)
    assert parts.tolist() == expected.tolist()
    assert seen.tolist() == (expected == "seen_configs").tolist()
    assert evaluate(run, copy, "test", tmp_path / "out").num_rows == summary.num_rows["test"]
    with pytest.raises(SeenRows):
        evaluate(run, copy, "seen_configs", tmp_path / "seen")


def test_a_missing_source_is_refused_with_how_many_and_what_to_do(run, tmp_path):
    fresh = make_dataset(num_kernels=5, num_configs=12, seed=9, first=500).data()
    bare = copied(fresh, source=lambda text: None if "kernel_503" in text else text)
    with pytest.raises(BadInput, match=r"1 of 5 kernels have no source.*collect these"):
        evaluate(run, bare, "test", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_its_families_says_what_was_not_checked(tmp_path):
    _, data, summary = trained()
    old = tmp_path / "run"
    shutil.copytree(summary.folder, old)
    take_out(old, "families.parquet")
    loaded = load_run(old)
    found = evaluate(loaded, data, "test", tmp_path / "out")
    assert found.num_rows == summary.num_rows["test"]
    assert "near duplicates of the train kernels were not searched for" in found.metrics["notes"][0]
    assert found.metrics["notes"][0] in (tmp_path / "out" / "table.md").read_text()
    (old / "families.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"families\.parquet"):
        evaluate(loaded, data, "test", tmp_path / "out2")
