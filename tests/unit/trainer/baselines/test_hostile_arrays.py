"""Arrays of a model that would take memory or time, or have no finite values."""

from __future__ import annotations

import shutil
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.baselines import feature_ensemble, forest
from trainer.baselines.feature_ensemble import FeatureEnsemble
from trainer.baselines.feature_network import read_arrays
from trainer.baselines.forest import Forest
from trainer.run.shipped import shipped_run

MIB = 2**20


def arrays(num_trees: int = 1, depth: int = 1, **changes: Any) -> dict[str, Any]:
    """Return trees that are chains: each node has a leaf on its left."""
    nodes, leaves = num_trees * depth, num_trees * (depth + 1)
    own = np.arange(nodes, dtype=np.int32)
    is_last = own % depth == depth - 1
    free = (-1 - np.arange(nodes, leaves)).astype(np.int32)
    right = np.where(is_last, free[own // depth], own + 1).astype(np.int32)
    found: dict[str, Any] = {
        "root": own[::depth], "feature": np.zeros(nodes, np.int32), "threshold": np.zeros(nodes),
        "left": -1 - own, "right": right, "missing_left": np.zeros(nodes, bool),
        "nan_is_missing": np.zeros(nodes, bool), "leaf": np.ones(leaves),
    }  # fmt: skip
    return found | changes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"leaf": np.zeros(2, np.int8)}, "'leaf' is of type int8, not float64"),
        ({"leaf": np.zeros(2, complex)}, "'leaf' is of type complex128"),
        ({"leaf": np.array(["1", "2"])}, "'leaf' is of type <U1"),
        ({"feature": np.zeros(1)}, "'feature' is of type float64, not int32"),
        ({"root": np.zeros(1, bool)}, "'root' is of type bool"),
        ({"missing_left": np.zeros(1, np.int32)}, "'missing_left' is of type int32"),
    ],
)
def test_arrays_of_another_kind(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "forest.npz", **arrays())
    assert Forest.from_arrays(read_arrays(tmp_path / "forest.npz", Forest.types()))
    np.savez(tmp_path / "forest.npz", **arrays(**changes))
    with pytest.raises(ValueError, match=says):
        read_arrays(tmp_path / "forest.npz", Forest.types())


def npz_of(path: Path, **members: bytes) -> None:
    """Write members with any content, as ``np.savez`` names them."""
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in members.items():
            packed.writestr(f"{name}.npy", content)


def long_header() -> bytes:
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }" + b" " * 20_000 + b"\n"
    return b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + bytes(4)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (long_header(), "'a' is not a plain array of numbers"),
        (b"\x80\x04N.", "'a' is not "),
        (b"", "'a' is not "),
    ],
)
def test_no_message_advises_to_trust_the_file(tmp_path: Path, content: bytes, says: str) -> None:
    npz_of(tmp_path / "a.npz", a=content)
    with pytest.raises(ValueError, match=says) as refused:
        read_arrays(tmp_path / "a.npz", {"a": np.int32})
    assert "pickle" not in str(refused.value)


def test_objects_are_refused_without_advice(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}]))
    with pytest.raises(ValueError, match="'a' is not a plain array of numbers") as refused:
        read_arrays(tmp_path / "a.npz", {"a": np.int32})
    assert "pickle" not in str(refused.value)


def test_an_unknown_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "forest.npz", **arrays(), extra=np.zeros(1))
    with pytest.raises(ValueError, match="it has an unknown array 'extra'"):
        read_arrays(tmp_path / "forest.npz", Forest.types())
    np.savez(tmp_path / "forest.npz", root=np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="array 'feature' is missing"):
        read_arrays(tmp_path / "forest.npz", Forest.types())


@pytest.mark.parametrize("wanted", [np.float64, np.float32])
def test_the_limit_counts_bytes_after_the_conversion(tmp_path: Path, wanted: type) -> None:
    path, most = tmp_path / "a.npz", 8 * MIB
    np.savez_compressed(path, a=np.zeros(most // 4, np.float16), b=np.zeros(1))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"would take more than 8388608 bytes"):
            read_arrays(path, {"b": wanted, "a": wanted}, max_bytes=most)
        assert tracemalloc.get_traced_memory()[1] < 2.2 * most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"leaf": np.array([1.0, np.nan])}, "not a number"),
        ({"leaf": np.array([1.0, np.inf])}, "not a number"),
        ({"threshold": np.array([np.nan])}, "not a number"),
        ({"left": np.array([-2], np.int32)}, "exactly one tree"),
        ({"root": np.array([0, 0], np.int32)}, "exactly one tree"),
        ({"leaf": np.ones(3)}, "exactly one tree"),
    ],
)
def test_trees_that_are_none(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Forest.from_arrays(arrays(**changes))


@pytest.mark.parametrize(
    ("num_trees", "depth", "says"),
    [(1, 4097, "deeper than 4096"), (1000, 2200, "add up to more"), (2**21, 1, "has more than")],
)
def test_forests_that_would_take_long(
    monkeypatch: pytest.MonkeyPatch, num_trees: int, depth: int, says: str
) -> None:
    monkeypatch.setattr(forest, "_MOST_LEAVES", 2**22 - 1)
    with pytest.raises(ValueError, match=says):
        Forest.from_arrays(arrays(num_trees, depth))
    assert Forest.from_arrays(arrays(10, 4096)).predict(np.zeros((3, 1))).tolist() == [10.0] * 3


def test_many_trees_take_little_memory_for_many_rows() -> None:
    many = Forest.from_arrays(arrays(100_000, 1))
    tracemalloc.start()
    try:
        assert many.predict(np.zeros((100, 1))).tolist() == [100_000.0] * 100
        assert tracemalloc.get_traced_memory()[1] < 128 * MIB
    finally:
        tracemalloc.stop()


def test_the_limit_counts_the_ensemble_for_counted_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = shipped_run()
    if shipped is None:
        pytest.skip("no model comes with this checkout")
    whole = FeatureEnsemble.load(shipped / "model")
    assert whole.counted is not None
    each = [one.forest.num_bytes + one.network.weights.num_bytes for one in (whole, whole.counted)]
    monkeypatch.setattr(feature_ensemble, "MAX_ARRAYS_BYTES", sum(each))
    assert FeatureEnsemble.load(shipped / "model").counted is not None
    monkeypatch.setattr(feature_ensemble, "MAX_ARRAYS_BYTES", sum(each) - 1)
    with pytest.raises(ValueError, match=r"counted/network/weights\.npz: .* would take more than"):
        FeatureEnsemble.load(shipped / "model")


def test_an_ensemble_for_counted_launches_has_none_itself(tmp_path: Path) -> None:
    shipped = shipped_run()
    if shipped is None:
        pytest.skip("no model comes with this checkout")
    model = shutil.copytree(shipped / "model", tmp_path / "model")
    shutil.copytree(shipped / "model" / "counted", model / "counted" / "counted")
    counted = FeatureEnsemble.load(model).counted
    assert counted is not None
    assert counted.counted is None
