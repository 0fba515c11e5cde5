"""A regressor's config may not ask for more weights than the files of its weights hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.factories.pack_factory import make_model, make_spec
from trainer.errors import BadInput
from trainer.regressor import weights
from trainer.regressor.checkpoint_files import load_into, stored_bytes, tensors_of, weight_files
from trainer.regressor.weights import load_regressor, save_regressor

HOLE_BYTES = 2**33


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_regressor(make_model(make_spec("small")), tmp_path / "model")
    return tmp_path / "model"


def with_hole(path: Path, data: bytes = b"") -> None:
    """Write a file of ``HOLE_BYTES`` that has only ``data`` on the disk."""
    path.write_bytes(data)
    os.truncate(path, HOLE_BYTES)


def model_of(num_weights: int) -> torch.nn.Module:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.empty(num_weights, device="meta"))
    return model


def check_size(model: torch.nn.Module, folder: Path) -> None:
    weights._check_size(model, folder, [*weight_files(folder), folder / weights.HEAD_FILE])


def is_refused(num_weights: int, folder: Path) -> bool:
    try:
        check_size(model_of(num_weights), folder)
    except BadInput:
        return True
    return False


def test_files_that_are_not_read_do_not_count(folder: Path) -> None:
    most = sum((folder / name).stat().st_size for name in ("model.safetensors", "head.safetensors"))
    assert not is_refused(most, folder)
    with pytest.raises(BadInput, match=f"describes {most + 1:,} weights.*copy the model again"):
        check_size(model_of(most + 1), folder)
    with_hole(folder / "other.safetensors")
    with_hole(folder / "pytorch_model.bin")  # model.safetensors is read in its place
    (folder / "notes.txt").write_bytes(bytes(most))
    assert is_refused(most + 1, folder)
    assert load_regressor(folder)


@pytest.mark.parametrize("at_end", [True, False])
def test_holes_of_the_weights_do_not_count(folder: Path, at_end: bool) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    with_hole(path, data if at_end else b"")
    if not at_end:
        with path.open("r+b") as file:
            file.seek(HOLE_BYTES - len(data))
            file.write(data)
    assert path.stat().st_size == HOLE_BYTES
    assert stored_bytes([path]) < len(data) + 2**18
    assert is_refused(len(data) + 2**19, folder)


def test_links_to_a_file_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(5000))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("a")
    names = ("a", "b", "c", "missing")
    assert stored_bytes(tmp_path / name for name in names) == stored_bytes([tmp_path / "a"]) >= 5000


@pytest.mark.parametrize("shards", ['{"a": 5, "b": "x"}', '{"a": []}', '{"a": "x\\u0000"}', "[]"])
def test_an_index_of_other_values(tmp_path: Path, shards: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {shards}}}')
    with pytest.raises(BadInput, match="weight_map"):
        list(tensors_of(tmp_path))


ODD_TENSORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "meta": (lambda one: one.to("meta"), "is without values"),
    "sparse": (lambda one: one.to_sparse(), "is sparse or nested"),
    "csr": (lambda one: one.to_sparse_csr(), "is sparse or nested"),
    "complex": (lambda one: one + 1j, "is of type torch.complex64"),
    "quantised": (
        lambda one: torch.quantize_per_tensor(one, 0.1, 0, torch.qint8),
        "is quantised",
    ),
    "integers": (lambda one: one.int(), "is of type torch.int32"),
    "nan": (lambda one: one + torch.nan, "has a value that is not a finite number"),
    "inf": (lambda one: one - torch.inf, "has a value that is not a finite number"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of tensors that few people use
@pytest.mark.parametrize("name", ODD_TENSORS)
def test_tensors_that_are_no_weights(name: str) -> None:
    change, says = ODD_TENSORS[name]
    tensor = change(torch.zeros(2, 3))
    module = torch.nn.Linear(3, 2, bias=False)
    with pytest.raises(BadInput, match=f"here: tensor weight {says}"):
        load_into(module, [("weight", tensor)], where=Path("here"))
    load_into(module, [("weight", torch.full((2, 3), 3e38))], where=Path("here"))
    assert bool((module.weight == 3e38).all()), "the sum overflows, but the weights do not"


def test_a_mask_may_be_infinite() -> None:
    module = torch.nn.Module()
    module.register_buffer("mask", torch.zeros(2))
    load_into(module, [("mask", torch.tensor([0.0, -torch.inf]))], where=Path("here"))
    with pytest.raises(BadInput, match="not a finite number"):
        load_into(module, [("mask", torch.tensor([0.0, torch.nan]))], where=Path("here"))


@pytest.mark.parametrize("name", ["meta", "sparse", "complex", "nan"])
def test_a_pickle_of_such_tensors(folder: Path, name: str) -> None:
    state = dict(tensors_of(folder))
    first = next(one for one, tensor in state.items() if tensor.ndim == 2)
    state[first] = ODD_TENSORS[name][0](state[first])
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match=rf"{folder}: tensor {first} "):
        load_regressor(folder)


def test_a_pickle_of_names_that_are_no_texts(folder: Path) -> None:
    state: dict[object, torch.Tensor] = {**dict(tensors_of(folder)), 5: torch.zeros(1)}
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match="not tensors by name"):
        load_regressor(folder)
