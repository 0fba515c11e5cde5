"""A whole training: what it learns, what it writes, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.config import ConfigError
from llmperf_common.files.outputs import OutputTaken
from llmperf_common.ids import HARNESS_VERSION
from llmperf_common.statistics.conformal import Conformal
from llmperf_common.statistics.splits import SplitError
from llmperf_common.store.files.filesystem import StoreError
from tests.support.factories import dataset_factory
from tests.support.factories.synthetic_dataset import QUICK, make_dataset, trained
from tests.support.sampling import slow_but_each
from trainer.config import load_train_config
from trainer.data.dataset import TrainingData, data_from_tables, load_data
from trainer.data.parts import make_split, row_parts
from trainer.errors import BadInput, RunExists
from trainer.evaluation.scoring import Prediction, context, meets_slice_bar, score_parts
from trainer.life.fitting import COMPARISONS
from trainer.life.identity import run_identity
from trainer.life.opening import opened
from trainer.life.train import fit_data, train
from trainer.run.folder import known_runs, resolve_run
from trainer.run.loaded import load_run

FILES = {
    "config.json",
    "split.json",
    "conformal.json",
    "training_range.json",
    "device.json",
    "metrics.json",
    "kernels.parquet",
    "families.parquet",
    "few_shot.json",
    "predictions.parquet",
    "model_card.md",
    "model",
    "baselines",
    "published.json",
}


def silent(_line: str) -> None:
    return None


@pytest.fixture(scope="module")
def small() -> TrainingData:
    return make_dataset(num_kernels=8, num_configs=16, seed=1).data()


LINE = load_train_config("log-linear", overrides=["judge.bootstrap_replicates=0"])


def test_only_ok_rows_with_an_ndrange_are_taken():
    dataset = make_dataset(num_kernels=3, num_configs=10)
    data = dataset.data()
    assert len(data) == 3 * 8  # a censored and a faulted row each; the broken kernel has none
    assert data.num_by_status == {
        "build_error": 1,
        "device_fault": 3,
        "ok": 24,
        "over_time_budget": 3,
    }
    assert sum(data.num_censored_by_regime.values()) == 3
    assert np.sum(~data.single_launch) == 3
    with pytest.raises(BadInput, match="none is ok"):
        data_from_tables(
            dataset.samples_table.slice(0, 1),
            dataset.kernels_table,
            dataset.devices_table,
            identity={},
        )


def test_the_gbdt_clears_the_bar_and_beats_the_global_median_everywhere():
    _, _, summary = trained()
    assert summary.metrics["meets_slice_bar"]
    assert meets_slice_bar(summary.metrics, "gbdt")
    for part in ("seen_configs", "test", "validation", "calibration"):
        models = summary.metrics["parts"][part]
        own, median = models["gbdt"]["all"], models["global-median"]["all"]
        assert own["median_ape_percent"] < median["median_ape_percent"]
        assert own["rmse_log2"] < 0.5 * median["rmse_log2"]
    seen = summary.metrics["parts"]["seen_configs"]["gbdt"]["all"]
    assert seen["spearman_mean"] >= 0.9
    assert seen["regret_mean_percent"] < seen["regret_random_percent"]


@pytest.mark.parametrize("units", ["family_id", "suite"])
def test_other_families_or_suites_make_another_run(small, units):
    """The split follows from them: a resumed run would score kernels that it was fitted on."""
    config = load_train_config("gbdt")
    moved = getattr(small, units).copy()
    moved[0] = "another"
    other = dataclasses.replace(small, **{units: moved})
    assert run_identity(other, config) != run_identity(small, config)


@pytest.mark.parametrize("log2_ns", [10.0, 14.0, 20.0])
def test_a_constant_predictor_fails_the_bar(log2_ns):
    """Whatever the constant is, also one far better placed than the global median of the train part."""
    _, data, summary = trained()
    parts = row_parts(data, make_split(data, load_train_config("gbdt").split))
    index = np.flatnonzero(parts == "seen_configs")
    median = np.full(len(index), np.median(data.log2_ns))
    constant = np.full(len(index), log2_ns)
    judge = LINE.judge
    metrics = {
        "parts": score_parts(
            data,
            parts,
            [
                Prediction(model="constant", index=index, log2_ns=constant),
                Prediction(model="global-median", index=index, log2_ns=median),
            ],
            judge,
        )
    }
    assert not meets_slice_bar(metrics, "constant")
    assert not meets_slice_bar(metrics, "global-median")
    assert not meets_slice_bar(summary.metrics, "global-median")
    assert not meets_slice_bar(summary.metrics, "unknown")


def test_shuffled_times_fail_the_bar(small, tmp_path):
    """The bar measures learning, not the plumbing: without a relation there is nothing to rank by."""
    order = np.random.default_rng(0).permutation(len(small))
    samples = small.rows.samples
    median = samples.column("median_ns").take(pa.array(order))
    place = samples.column_names.index("median_ns")
    shuffled = data_from_tables(
        samples.set_column(place, samples.schema.field("median_ns"), median),
        small.rows.kernels,
        small.devices,
        identity=dict(small.identity),
    )
    config = load_train_config("gbdt", overrides=QUICK)
    summary = train(shuffled, config, tmp_path / "run", silent)
    assert not summary.metrics["meets_slice_bar"]


def test_intervals_cover_fresh_kernels():
    _, _, summary = trained()
    run = load_run(summary.folder)
    fresh = make_dataset(num_kernels=40, num_configs=24, seed=77, first=1000).data()
    predicted = run.model.predict(fresh.rows).log2_ns
    low, high = run.conformal.interval_ns(predicted, fresh.texts("regime"))
    measured = np.exp2(fresh.log2_ns)
    coverage = np.mean((low <= measured) & (measured <= high))
    assert 0.82 <= coverage <= 0.98


def test_no_family_crosses_and_fitted_rows_are_train_only():
    _, data, summary = trained()
    split = json.loads((summary.folder / "split.json").read_text())
    listed = [identity for ids in split["parts"].values() for identity in ids]
    assert len(listed) == len(set(listed)) == 40
    parts = row_parts(data, load_run(summary.folder).split)
    for family in np.unique(data.family_id):
        found = set(parts[data.family_id == family].tolist())
        assert len(found - {"seen_configs"}) == 1
        assert "seen_configs" not in found or "train" in found
    fit = fit_data(data, parts, load_train_config("gbdt"))
    fitted = set(fit.rows.samples.column("sample_id").to_pylist())
    held_out = data.rows.samples.filter(pa.array(parts != "train")).column("sample_id").to_pylist()
    assert len(fitted) == np.sum(parts == "train")
    assert not fitted & set(held_out)
    # rodinia's kernel is number 0
    suite = set(parts[data.suite == "rodinia/bfs"].tolist())
    assert suite == {"test"}


def test_the_run_folder_is_complete_and_reads_back():
    _, data, summary = trained()
    assert {path.name for path in summary.folder.iterdir()} == FILES
    assert [path.name for path in summary.folder.parent.iterdir()] == ["run"]
    run = load_run(summary.folder)
    assert run.name == "gbdt"
    assert set(run.baselines) == set(COMPARISONS)
    assert list(run.devices) == ["synth"]
    assert run.kernels.num_rows == summary.num_families["train"]
    stored = pq.read_table(summary.folder / "predictions.parquet")
    assert stored.column_names == [
        "sample_id",
        "kernel_id",
        "family_id",
        "suite",
        "split",
        "model",
        "device_class",
        "median_ns",
        "predicted_ns",
        "low_ns",
        "high_ns",
    ]
    assert "train" not in stored.column("split").to_pylist()
    own = stored.filter(pa.compute.equal(stored.column("model"), "gbdt"))
    index = {name: row for row, name in enumerate(data.texts("sample_id").tolist())}
    rows = np.array([index[name] for name in own.column("sample_id").to_pylist()])
    again = np.exp2(run.model.predict(data.rows.take(rows)).log2_ns)
    np.testing.assert_array_equal(own.column("predicted_ns").to_numpy(), again)
    assert own.column("low_ns").null_count == 0
    card = (summary.folder / "model_card.md").read_text()
    assert "| seen_configs | gbdt |" in card
    assert "2.5" in card  # the share of censored launches


def test_no_pickle_in_a_run():
    _, _, summary = trained()
    suffixes = {path.suffix for path in summary.folder.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".txt", ".parquet", ".md"}


def test_batched_rows_are_not_scored():
    _, data, summary = trained()
    parts = row_parts(data, load_run(summary.folder).split)
    for part, models in summary.metrics["parts"].items():
        expected = int(np.sum((parts == part) & data.single_launch))
        assert models["gbdt"]["all"]["num_rows"] == expected
    assert context(data)["num_batched_rows"] == 40


def test_the_same_seed_gives_the_same_run(small, tmp_path):
    config = load_train_config("gbdt", overrides=QUICK)
    first = train(small, config, tmp_path / "a", silent)
    second = train(small, config, tmp_path / "b", silent)
    assert first.metrics == second.metrics
    for name in ("model/trees.txt", "split.json", "conformal.json", "training_range.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_run_is_only_replaced_on_request(small, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    train(small, LINE, out, silent)  # an empty folder will do
    other = load_train_config("log-linear", overrides=["log_linear.ridge=3.0"])
    before = (out / "config.json").read_bytes()
    with pytest.raises(RunExists, match=r"train\.overwrite=true") as caught:
        train(small, other, out, silent)
    assert isinstance(caught.value, ConfigError)
    assert (out / "config.json").read_bytes() == before
    train(small, overwriting(other), out, silent)
    assert (out / "config.json").read_bytes() != before
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def overwriting(config):
    return config.model_copy(update={"train": config.train.model_copy(update={"overwrite": True})})


def test_a_finished_run_is_shown_and_not_trained_again(small, tmp_path):
    out = tmp_path / "run"
    first = train(small, LINE, out, silent)
    marker = (out / "published.json").read_bytes()
    lines: list[str] = []
    threads = load_train_config("log-linear", overrides=[
        "judge.bootstrap_replicates=0", "train.num_threads=1", "optimiser.zero_stage=2",
    ])  # fmt: skip
    again = train(small, threads, out, lines.append)  # neither is a part of what the run is
    assert again == dataclasses.replace(first, notes=tuple(first.notes))
    assert (out / "published.json").read_bytes() == marker
    assert any("is finished" in line for line in lines)
    train(small, overwriting(LINE), out, silent)
    assert (out / "published.json").read_bytes() != marker


def test_a_dataset_that_has_grown_is_another_run(small, tmp_path):
    grown = make_dataset(num_kernels=9, num_configs=16, seed=1).data()
    out = tmp_path / "run"
    train(small, LINE, out, silent)
    with pytest.raises(RunExists, match="has grown"):
        train(grown, LINE, out, silent)
    shuffled = data_from_tables(
        small.rows.samples.take(pa.array(np.random.default_rng(0).permutation(len(small)))),
        small.rows.kernels,
        small.devices,
        identity={},
    )
    assert run_identity(shuffled, LINE) == run_identity(small, LINE)


def test_one_training_at_a_time_works_in_a_folder(small, tmp_path):
    out = tmp_path / "run"
    identity = run_identity(small, LINE)
    with (
        opened(out, identity, overwrite=False),
        pytest.raises(RunExists, match="another process works"),
    ):
        train(small, LINE, out, silent)
    train(small, LINE, out, silent)


@pytest.mark.parametrize(
    ("name", "lies_in"),
    [("fit", "fit"), ("fit/checkpoints", "fit/checkpoints"), ("baselines", "baselines")],
)
def test_a_run_with_a_link_out_of_it_is_not_gone_on_with(small, tmp_path, name, lies_in):
    """Publishing drops the fit's folders, and a link would lead it to another folder."""
    out, others = tmp_path / "run", tmp_path / "others"
    train(small, LINE, out, silent)
    (out / "published.json").unlink()  # a stranger's run, to be gone on with
    shutil.rmtree(out / "baselines")
    work = others / "checkpoints" / "work.txt"
    work.parent.mkdir(parents=True)
    work.write_text("years of it")
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).symlink_to(others)
    with pytest.raises(OutputTaken, match=f"{lies_in} is a link that leads out"):
        train(small, LINE, out, silent)
    assert work.read_text() == "years of it"
    (out / name).unlink()
    train(small, LINE, out, silent)


_KILLED_TRAINING = """
import os, signal, sys
from pathlib import Path
from tests.unit.trainer.life.test_train import LINE, make_dataset
from trainer.life import train
step, out = sys.argv[1], Path(sys.argv[2])
moves = 0
def die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
def replace(source, target):
    global moves
    moves += Path(source).parent.name == ".publishing"
    die() if moves == 4 or Path(target).name == step else os.rename(source, target)
if step == "before the files":
    train.model_card = die
elif step == "before the marker":
    train.mark_published = die
else:
    os.replace = replace
train.train(make_dataset(num_kernels=8, num_configs=16, seed=1).data(), LINE, out, lambda line: None)
"""


@pytest.mark.parametrize(
    "step",
    slow_but_each(
        3,
        [
            "config.json",
            "split.json",
            "before the files",
            "among the files",
            "before the marker",
            "published.json",
        ],
    ),
)
def test_a_training_killed_while_it_writes_is_published_by_the_next(small, tmp_path, step):
    out = tmp_path / "run"
    reference = train(small, LINE, tmp_path / "reference", silent)
    killed = subprocess.run([sys.executable, "-c", _KILLED_TRAINING, step, str(out)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert known_runs((tmp_path,)) == [tmp_path / "reference"]
    what = "no trained run|not finished|of a finished training"
    with pytest.raises(BadInput, match=what):
        load_run(out)
    with pytest.raises(BadInput, match=what):
        resolve_run(out)
    again = train(small, LINE, out, silent)
    assert again.metrics == reference.metrics
    assert {path.name for path in out.iterdir()} == FILES


def test_a_folder_that_is_no_run_is_never_replaced(small, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("hello")
    force = load_train_config("log-linear", overrides=["train.overwrite=true"])
    with pytest.raises(OutputTaken, match="holds no run"):
        train(small, force, tmp_path / "letters", silent)
    with pytest.raises(OutputTaken, match="is a file, not a folder"):
        train(small, force, tmp_path / "letters" / "dear.txt", silent)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "hello"


def test_a_failed_training_leaves_nothing(small, tmp_path, monkeypatch):
    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        train(small, LINE, tmp_path / "run", silent)
    assert list(tmp_path.iterdir()) == []


def test_too_few_families_say_what_to_do(tmp_path):
    data = make_dataset(num_kernels=3, num_configs=30, first=1).data()
    with pytest.raises(SplitError, match=r"split\.kind=config"):
        train(data, LINE, tmp_path / "run", silent)
    by_config = load_train_config("log-linear", overrides=["split.kind=config"])
    summary = train(data, by_config, tmp_path / "run", silent)
    assert set(summary.num_rows) == {"train", "validation", "calibration", "test"}
    assert any("not unseen kernels" in note for note in summary.notes)


def test_the_smallest_family_split_trains(tmp_path):
    data = make_dataset(num_kernels=4, num_configs=12, first=1).data()
    config = load_train_config("gbdt", overrides=QUICK)
    summary = train(data, config, tmp_path / "run", silent)
    assert all(summary.num_families[part] == 1 for part in ("validation", "calibration", "test"))
    assert any("without guarantee" in note for note in summary.notes)


def test_split_by_kernel_trains(small, tmp_path):
    config = load_train_config("log-linear", overrides=["split.kind=kernel"])
    summary = train(small, config, tmp_path / "run", silent)
    assert "test" in summary.num_rows


def test_damaged_runs_are_bad_input(small, tmp_path):
    out = tmp_path / "run"
    train(small, LINE, out, silent)
    for name in ("split.json", "conformal.json", "training_range.json", "device.json"):
        kept = (out / name).read_bytes()
        (out / name).write_text("{}")
        with pytest.raises(BadInput, match="run"):
            load_run(out)
        (out / name).write_bytes(kept)
    content = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**content, "features": ["another"]}))
    with pytest.raises(BadInput, match=r"config\.json has .* of .* bytes"):
        load_run(out)
    published = json.loads((out / "published.json").read_text())
    published["files"]["config.json"]["bytes"] = (out / "config.json").stat().st_size
    (out / "published.json").write_text(json.dumps(published))
    with pytest.raises(BadInput, match="train it again"):
        load_run(out)
    shutil.rmtree(out)
    with pytest.raises(BadInput, match="finished training"):
        load_run(out)


def test_runs_are_found_by_path_and_by_name(small, tmp_path):
    train(small, LINE, tmp_path / "runs" / "demo" / "model", silent)
    search = (tmp_path / "runs",)
    expected = tmp_path / "runs" / "demo" / "model"
    assert resolve_run(expected) == expected
    assert resolve_run("demo", search) == expected
    assert known_runs(search) == [expected]
    assert resolve_run("demo/model", search) == expected
    with pytest.raises(BadInput, match=r"runs here: .*demo"):
        resolve_run("dmeo", search)
    with pytest.raises(BadInput, match="llmperf train"):
        resolve_run("x", (tmp_path / "nowhere",))


def test_conformal_record_of_a_run_reads_back():
    _, _, summary = trained()
    content = json.loads((summary.folder / "conformal.json").read_text())
    assert Conformal.from_json(content).to_json() == content
    assert content["source"] == "calibration+cross"  # two calibration families are too few
    assert content["pooled"]["guarantee"] == "groups"


def test_a_dataset_on_disk_is_read_through_its_manifest(tmp_path):
    folder = dataset_factory.make_dataset(tmp_path / "data", kernels=5, num_configs=12)
    data = load_data(folder)
    assert data.identity == {
        "plan_hashes": [dataset_factory.PLAN_HASH],
        "manifest_version": 4,
        "harness_version": HARNESS_VERSION,
    }
    assert len(data) == data.num_by_status["ok"] > 0
    summary = train(data, LINE, tmp_path / "run", silent)
    assert sum(summary.num_rows.values()) == len(data)
    assert run_identity(data, LINE)["dataset_id"] in (tmp_path / "run/config.json").read_text()
    with pytest.raises(StoreError, match="not a dataset"):
        load_data(tmp_path / "run")
