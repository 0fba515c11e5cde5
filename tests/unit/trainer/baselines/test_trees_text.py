"""Texts of trees that would take many times their size of memory are refused first."""

from __future__ import annotations

import dataclasses
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.factories.synthetic_dataset import QUICK, make_dataset
from tests.support.measured import GIB
from tests.support.own_memory import peak_bytes
from trainer.baselines import gbdt
from trainer.baselines.gbdt import fit_gbdt
from trainer.baselines.trees_text import MAX_BYTES, check_trees
from trainer.config import load_train_config
from trainer.errors import BadInput
from trainer.interface import FitData
from trainer.life.fitting import fit_model

NUM_FEATURES = 2
MIB = 2**20


def tree(number: int, num_leaves: int, value: str = "0") -> str:
    """A chain of splits: each has a leaf on its left."""
    splits = range(num_leaves - 1)
    right = [*(str(one + 1) for one in splits[:-1]), str(-num_leaves)]
    of_splits = " ".join([value] * (num_leaves - 1))
    of_leaves = " ".join([value] * num_leaves)
    fields = {
        "num_leaves": num_leaves, "num_cat": 0,
        "split_feature": " ".join(["0"] * (num_leaves - 1)), "split_gain": of_splits, "threshold": of_splits,
        "decision_type": " ".join(["2"] * (num_leaves - 1)),
        "left_child": " ".join(str(-1 - one) for one in splits), "right_child": " ".join(right),
        "leaf_value": of_leaves, "leaf_weight": of_leaves, "leaf_count": of_leaves,
        "internal_value": of_splits, "internal_weight": of_splits, "internal_count": of_splits,
        "is_linear": 0, "shrinkage": 1,
    }  # fmt: skip
    lines = "\n".join(f"{name}={one}" for name, one in fields.items())
    return f"Tree={number}\n{lines}\n\n\n"


def text_of(trees: list[str], after: str = "") -> str:
    sizes = " ".join(str(len(one)) for one in trees)
    return (
        "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\n"
        "max_feature_idx=1\nobjective=regression\nfeature_names=a b\nfeature_infos=[0:1] [0:1]\n"
        f"tree_sizes={sizes}\n\n{''.join(trees)}end of trees\n\nfeature_importances:\na=1\n\n"
        f"parameters:\n[boosting: gbdt]\n{after}end of parameters\n\npandas_categorical:null\n"
    )


def in_tree(name: str, values: str) -> str:
    return text_of([re.sub(f"{name}=[^\n]*", f"{name}={values}", tree(0, 3))])


def in_head(name: str, values: str) -> str:
    return re.sub(f"{name}=[^\n]*", f"{name}={values}", text_of([tree(0, 3)]), count=1)


def lines(number: int) -> str:
    return "".join(f"{one:x}=\n" for one in range(number))


BOMBS: dict[str, Callable[[int], str]] = {
    "values of a leaf": lambda size: in_tree("leaf_value", "12 " * (size // 3) + "1"),
    "digits of a number": lambda size: in_tree("threshold", "1" * size + " 1"),
    "lines of a tree": lambda size: text_of([tree(0, 3) + lines(size // 7)]),
    "trees without content": lambda size: text_of(["Tree=\n" * (size // 6)]),
    "sizes of trees": lambda size: in_head("tree_sizes", "12 " * (size // 3) + "1"),
    "names of features": lambda size: in_head("feature_names", "ab " * (size // 3) + "a"),
    "ranges of features": lambda size: in_head("feature_infos", "ab " * (size // 3) + "a"),
    "lines of the head": lambda size: text_of([]).replace("version", lines(size // 7) + "version"),
    "parameters": lambda size: text_of([tree(0, 3)], after="[ab: c]\n" * (size // 8)),
}


def test_a_small_text_is_read() -> None:
    check_trees(text_of([tree(0, 3), tree(1, 2)]), num_features=NUM_FEATURES)


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_take_memory_is_counted_first(name: str) -> None:
    text = BOMBS[name](2 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="tree"):
            check_trees(text, num_features=NUM_FEATURES)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()


_LOAD = """
import sys
from pathlib import Path
from trainer.baselines.gbdt import Gbdt
Gbdt.load(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_the_largest_text_takes_no_gigabyte(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    each = len(tree(10_000, 63))
    trees = [tree(number, 63) for number in range((MAX_BYTES - MIB) // each)]
    (tmp_path / "trees.txt").write_text(text_of(trees))
    (tmp_path / "model.json").write_text(
        json.dumps({"schema": 1, "name": "gbdt", "features": ["a", "b"], "chosen": {}})
    )
    assert peak_bytes(_LOAD, tmp_path) < 0.8 * GIB


def test_trees_that_could_not_be_read_again_end_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(gbdt, "MAX_BYTES", 10_000)
    lines: list[str] = []
    config = load_train_config("gbdt", overrides=QUICK)
    with pytest.raises(BadInput, match=r"trees take 0 MiB.*lower gbdt.num_leaves"):
        fit_model("gbdt", small_fit(), config, lines.append)
    assert "lower gbdt.num_rounds to be sure" in lines[0]


def small_fit() -> FitData:
    data = make_dataset(num_kernels=6, num_configs=20, seed=3).data()
    return FitData(rows=data.rows, log2_ns=data.log2_ns, family=data.kernel_codes(), weight=data.log2_ns * 0 + 1)  # fmt: skip


@pytest.mark.parametrize(("num_rounds", "warns"), [(100_000, True), (10_000, False)])
def test_a_fit_that_may_end_so_is_warned_of_before(num_rounds: int, warns: bool) -> None:
    pytest.importorskip("lightgbm")
    fit = small_fit()
    fit = dataclasses.replace(fit, validation=fit.rows, validation_log2_ns=fit.log2_ns)
    changes: dict[str, float] = {
        "num_rounds": num_rounds,
        "early_stopping_rounds": 1,
        "tune": False,
    }
    changes |= {"min_rows_in_leaf": 2, "learning_rate": 1.0}
    config = load_train_config("gbdt").gbdt.model_copy(update=changes)
    lines: list[str] = []
    fit_gbdt(fit, fit=load_train_config("gbdt").train, config=config, progress=lines.append)
    assert ("100,000 trees of 31 leaves would take up to 283 MiB" in lines[0]) == warns
    assert "warning" not in lines[-1]
