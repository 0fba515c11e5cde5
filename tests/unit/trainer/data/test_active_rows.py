"""``train.rows``: kernels that do nothing on their inputs are neither fitted nor scored, and that is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.factories.synthetic_dataset import make_dataset
from trainer.config import load_train_config
from trainer.data.dataset import TrainingData, data_from_tables, with_activity
from trainer.errors import BadInput
from trainer.evaluation.evaluate import evaluate
from trainer.life.train import train
from trainer.run.loaded import load_run

CONFIG = ("judge.bootstrap_replicates=0",)
DATASET = make_dataset(num_kernels=16, num_configs=12, seed=3)


def labelled(*labels: str | None) -> TrainingData:
    """The dataset with these labels on its first kernels, ``active`` on the others."""
    kernels = DATASET.kernels_table
    column = [*labels, *["active"] * (kernels.num_rows - len(labels))]
    place = kernels.column_names.index("activity")
    kernels = kernels.set_column(place, "activity", pa.array(column, pa.string()))
    return data_from_tables(
        DATASET.samples_table,
        kernels,
        DATASET.devices_table,
        identity={"plan_hashes": ["p"], "manifest_version": 1},
    )


def test_idle_kernels_are_left_out_and_counted() -> None:
    data = labelled("nothing", "few_items", None, "nothing")
    kept, notes = with_activity(data, "active")
    idle = np.isin(data.rows.kernel_row, (0, 3))
    assert 0 < idle.sum() < len(data)
    assert len(kept) == (~idle).sum()
    assert notes == [f"kernels that do nothing on their inputs, left out: 2 ({idle.sum()} rows)"]
    assert len(with_activity(data, "all")[0]) == len(data)
    untouched = labelled()
    kept, notes = with_activity(untouched, "active")
    assert kept is untouched
    assert not notes


def test_without_an_active_kernel_the_way_out_is_said() -> None:
    data = labelled(*["nothing"] * DATASET.kernels_table.num_rows)
    with pytest.raises(BadInput, match=r"train\.rows=all"):
        with_activity(data, "active")


def test_a_run_neither_fits_nor_scores_them(tmp_path: Path) -> None:
    data = labelled("nothing", "nothing")
    idle = set(data.texts("kernel_id")[np.isin(data.rows.kernel_row, (0, 1))].tolist())
    assert len(idle) == 2
    for rule in ("active", "all"):
        config = load_train_config("log-linear", overrides=[*CONFIG, f"train.rows={rule}"])
        train(data, config, tmp_path / rule, lambda _line: None)
        run = load_run(tmp_path / rule)
        done = evaluate(run, data, "all", tmp_path / f"{rule}-scores", allow_seen=True)
        assert done.num_rows == len(with_activity(data, rule)[0])
        said = json.loads((tmp_path / rule / "published.json").read_text())["notes"]
        assert any("left out: 2" in note for note in said) == (rule == "active")
        assert sum("left out: 2" in note for note in done.notes) == (rule == "active")
