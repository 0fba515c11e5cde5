"""The life of a language model: prepared, fitted through DeepSpeed, published, read back; killed and resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.config import ConfigError
from tests.support.factories.synthetic_dataset import make_dataset
from trainer.config import TrainConfig, load_train_config
from trainer.data.dataset import TrainingData
from trainer.data.parts import make_split, row_parts
from trainer.errors import BadInput, Interrupted, RunExists
from trainer.evaluation.evaluate import evaluate
from trainer.fit.ranks import join_ranks
from trainer.life.conductor import Conductor
from trainer.life.identity import init_of
from trainer.life.language import blocks_are_compiled
from trainer.life.offset import fitted_offset
from trainer.life.summary import RunSummary
from trainer.life.train import fit_data, train
from trainer.regressor.predictor import RegressorPredictor
from trainer.regressor_config import OptimiserConfig
from trainer.run.loaded import load_run

SHORT = (
    "judge.bootstrap_replicates=0",
    "train.device=cpu",
    "prompt.vocabulary=400",
    "packing.lengths=[256]",
    "prompt.max_tokens=256",
    "packing.tokens_per_step=1024",
    "packing.tokens_per_pass=1024",
    "regressor.width=32",
    "regressor.head_width=32",
    "optimiser.max_steps=12",
    "optimiser.warmup_steps=2",
    "optimiser.evaluate_every_steps=4",
    "checkpoint.every_steps=4",
    "log.every_steps=1",
)


def dataset() -> TrainingData:
    return make_dataset(num_kernels=12, num_configs=16, seed=1).data()


def config(*more: str, preset: str = "tiny") -> TrainConfig:
    return load_train_config(preset, overrides=[*SHORT, *more])


def run(data: TrainingData, settings: TrainConfig, out: Path, say=lambda _line: None) -> RunSummary:
    return train(data, settings, out, say, conductor=alone())


def alone() -> Conductor:
    return Conductor(lambda: join_ranks("cpu"))


@pytest.fixture(scope="module")
def data() -> TrainingData:
    return dataset()


@pytest.fixture(scope="module")
def summary(data, tmp_path_factory) -> RunSummary:
    return run(data, config(), tmp_path_factory.mktemp("language") / "run")


def test_a_published_run_predicts_what_it_wrote(data, summary):
    loaded = load_run(summary.folder)
    assert loaded.name == "regressor"
    stored = pq.read_table(summary.folder / "predictions.parquet")
    own = stored.filter(pa.compute.equal(stored.column("model"), "regressor"))
    index = {name: row for row, name in enumerate(data.texts("sample_id").tolist())}
    rows = np.array([index[name] for name in own.column("sample_id").to_pylist()])
    found = loaded.model.predict(data.rows.take(rows))
    np.testing.assert_allclose(np.exp2(found.log2_ns), own.column("predicted_ns"), rtol=1e-4)
    assert found.spread is not None
    assert (found.spread > 0).all()
    assert own.column("low_ns").null_count == 0


def test_what_is_read_back_predicts_and_saves_what_will_be_published(data, summary, tmp_path):
    fitted = load_run(summary.folder).model
    again = fitted.read_back(tmp_path / "model")
    (tmp_path / "published").mkdir()
    again.model = None  # what a GPU holds is not what is written
    again.save(tmp_path / "published")
    names = sorted(path for path in (tmp_path / "published").rglob("*") if path.is_file())
    assert len(names) == 7
    for path in names:
        stored = summary.folder / "model" / path.relative_to(tmp_path / "published")
        assert path.read_bytes() == stored.read_bytes()
    rows = data.rows.take(np.arange(20))
    published = RegressorPredictor.load(tmp_path / "published").predict(rows)
    np.testing.assert_array_equal(published.log2_ns, fitted.predict(rows).log2_ns)


def test_the_folder_of_a_published_run(summary):
    names = {path.name for path in summary.folder.iterdir()}
    assert "prepared" not in names
    assert not (summary.folder / "fit" / "checkpoints").exists()
    lines = [
        json.loads(line)
        for path in (summary.folder / "fit").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(1, 13))
    suffixes = {path.suffix for path in (summary.folder / "model").rglob("*") if path.is_file()}
    assert suffixes == {".json", ".safetensors"}
    listed = json.loads((summary.folder / "published.json").read_text())["files"]
    assert "model/model.safetensors" in listed


@pytest.mark.parametrize("name", ["model.safetensors", "head.safetensors", "predictor.json"])
def test_a_damaged_model_is_bad_input(data, summary, tmp_path, name):
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", summary.folder, folder], check=True)
    path = folder / "model" / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BadInput, match=name):
        load_run(folder)


_KILLED = """
import sys
from pathlib import Path
from tests.unit.trainer.life.test_language_model import config, dataset, run
run(dataset(), config(), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_resume_after_sigkill_gives_the_same_run(data, summary, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", _KILLED, str(out)])
    deadline = time.monotonic() + 90
    while not (out / "fit" / "checkpoints" / "step-00000004").exists():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if (out / "published.json").exists():
        pytest.skip("it was through before the signal came")
    again = run(data, config(), out)
    for name in ("model/model.safetensors", "model/head.safetensors", "split.json"):
        assert (out / name).read_bytes() == (summary.folder / name).read_bytes(), name
    assert again.metrics == summary.metrics


def test_another_config_does_not_go_on_with_a_started_run(data, summary):
    with pytest.raises(RunExists, match="another config"):
        run(data, config("optimiser.learning_rate=1e-4"), summary.folder)
    same = config("packing.tokens_per_pass=256", "log.every_steps=3", "optimiser.zero_stage=2")
    assert run(data, same, summary.folder).metrics == summary.metrics


def test_a_dataset_without_sources_is_refused_and_leaves_nothing(data, tmp_path):
    kernels = data.rows.kernels
    place = kernels.column_names.index("source")
    bare = kernels.set_column(
        place, kernels.schema.field("source"), pa.nulls(len(kernels), pa.string())
    )
    rows = dataclasses.replace(data.rows, kernels=bare)
    with pytest.raises(BadInput, match="source"):
        run(dataclasses.replace(data, rows=rows), config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kernel_without_source_is_left_out_and_said(data, tmp_path):
    settings = config()
    test = row_parts(data, make_split(data, settings.split)) == "test"
    row = int(data.rows.kernel_row[test][0])
    kernels = data.rows.kernels
    place = kernels.column_names.index("source")
    sources = kernels.column("source").to_pylist()
    sources[row] = None
    bare = kernels.set_column(place, kernels.schema.field("source"), pa.array(sources, pa.string()))
    rows = dataclasses.replace(data.rows, kernels=bare)
    lines = []
    summary = run(dataclasses.replace(data, rows=rows), settings, tmp_path / "run", lines.append)
    missing = int((data.rows.kernel_row == row).sum())
    note = f"kernels without source, left out: 1 ({missing} rows)"
    assert note in lines
    assert note in summary.notes
    assert sum(summary.num_rows.values()) == len(data) - missing
    assert note in (tmp_path / "run" / "model_card.md").read_text(encoding="utf-8")


def test_nothing_to_calibrate_on_is_said_before_the_fit(data, tmp_path):
    settings = config()
    calibration = row_parts(data, make_split(data, settings.split)) == "calibration"
    single = np.where(calibration, False, data.single_launch)
    lines = []
    with pytest.raises(BadInput, match="calibration part has no ok row"):
        run(
            dataclasses.replace(data, single_launch=single),
            settings,
            tmp_path / "run",
            lines.append,
        )
    assert not any("step" in line for line in lines)


def test_prompts_that_do_not_fit_are_refused(data, tmp_path):
    tight = config("prompt.max_tokens=32", "prompt.too_long=drop")
    with pytest.raises(BadInput, match=r"prompt\.max_tokens = 32"):
        run(data, tight, tmp_path / "run")


def test_blocks_are_compiled_on_a_gpu_but_for_zero_3():
    stages = [OptimiserConfig(zero_stage=stage) for stage in (1, 2, 3)]
    assert [blocks_are_compiled("cuda", stage) for stage in stages] == [True, True, False]
    assert not any(blocks_are_compiled("cpu", stage) for stage in stages)


def test_the_offset_of_a_train_row_knows_nothing_of_its_family(data):
    settings = config("regressor.offset=gbdt", "gbdt.tune=false", "gbdt.num_rounds=20")
    parts = np.where(row_parts(data, make_split(data, settings.split)) == "train", "train", "test")
    train_rows = np.flatnonzero(parts == "train")
    family = data.family_id[train_rows[0]]
    of_family = data.family_id == family

    def offsets(changed: TrainingData) -> np.ndarray:
        fit = fit_data(changed, parts, settings)
        return fitted_offset(settings, changed, train_rows, fit, lambda _line: None)[1]

    other = dataclasses.replace(data, log2_ns=data.log2_ns + 5.0 * of_family)
    before, after = offsets(data), offsets(other)
    own = of_family & (parts == "train")
    np.testing.assert_array_equal(before[own], after[own])
    assert np.abs(before - after)[(parts == "train") & ~of_family].max() > 0.01
    assert np.abs(before - after)[parts == "test"].max() > 0.01


def test_an_offset_needs_two_families(data, tmp_path):
    one = dataclasses.replace(data, family_id=np.full(len(data), "a"))
    parts = np.full(len(data), "train")
    settings = config("regressor.offset=gbdt", "gbdt.tune=false")
    train_rows = np.arange(len(data))
    with pytest.raises(BadInput, match="one family"):
        fitted_offset(settings, one, train_rows, fit_data(one, parts, settings), print)


def test_a_prompt_longer_than_a_pack_is_a_mistake_in_the_config():
    with pytest.raises(
        ConfigError, match=r"prompt\.max_tokens = 512 exceeds .* packing\.lengths \(256\)"
    ):
        config("prompt.max_tokens=512")


def test_an_offset_that_the_head_would_not_read_is_a_mistake_in_the_config():
    with pytest.raises(ConfigError, match=r"regressor\.offset=gbdt: head softplus"):
        config("regressor.head=softplus", "regressor.offset=gbdt")


@pytest.mark.parametrize("place", [0, 100, 2_500_000, 5_242_879])
def test_checkpoints_that_differ_anywhere_are_told_apart(tmp_path, place):
    content = bytearray(5 * 2**20)
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(content)
    first = init_of(tmp_path).digest
    assert init_of(tmp_path).digest == first
    content[place : place + 300_000] = b"x" * len(content[place : place + 300_000])
    weights.write_bytes(content)
    assert init_of(tmp_path).digest != first


@pytest.mark.slow
def test_resume_with_the_checkpoint_in_another_place(data, tmp_path):
    codegen = ("regressor.backbone=codegen", "regressor.depth=1", "regressor.heads=4")
    settings = config(*codegen, "regressor.width=128", "optimiser.max_steps=2")
    first = run(data, settings, tmp_path / "first").folder / "model"
    out = tmp_path / "run"
    stop = alone()
    stop.stop.asked.set()
    with pytest.raises(Interrupted):
        train(data, settings, out, print, init=init_of(first), conductor=stop)
    moved = first.rename(tmp_path / "moved")
    lines = []
    train(data, settings, out, lines.append, init=init_of(moved), conductor=alone())
    assert (out / "published.json").exists()
    assert not any("step 1/2" in line for line in lines), "it went on, it did not begin anew"


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("prompt.form=compact", "prompt.max_tokens=512", "packing.lengths=[512]"),
        ("regressor.reads=query",),
        ("regressor.offset=roofline", "optimiser.loss=relative"),
        ("regressor.offset=gbdt", "gbdt.tune=false", "optimiser.loss=l2"),
        ("regressor.lora_rank=4",),
        ("optimiser.precision=bf16", "optimiser.zero_stage=3"),
    ],
    ids=lambda more: more[0],
)
def test_every_variant_trains_and_reads_back(data, tmp_path, more):
    summary = run(data, config("optimiser.max_steps=6", *more), tmp_path / "run")
    found = load_run(summary.folder).model.predict(data.rows)
    assert np.isfinite(found.log2_ns).all()


@pytest.mark.slow
def test_run_card_and_tables_say_what_the_weights_started_from(data, tmp_path):
    codegen = ("regressor.backbone=codegen", "regressor.depth=1", "regressor.heads=4")
    settings = config(*codegen, "regressor.width=128", "optimiser.max_steps=1")
    summary = run(data, settings, tmp_path / "run")
    said = "started from random weights (--init random)"
    assert any(said in note for note in summary.notes)
    assert said in (summary.folder / "model_card.md").read_text()
    found = evaluate(load_run(summary.folder), data, "test", tmp_path / "evaluation")
    assert said in found.table
    assert said in (tmp_path / "evaluation" / "table.md").read_text()

    init = init_of(summary.folder / "model")
    place = tmp_path / "second"
    again = train(data, settings, place, lambda _line: None, init=init, conductor=alone())
    said = f"started from the checkpoint model (digest {init.digest})"
    assert said in (again.folder / "model_card.md").read_text()
