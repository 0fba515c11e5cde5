"""Checkpoints whose files match their manifest, but that no fit has written, are not whole."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.errors import RunExists
from trainer.fit import checkpoint as checkpoints
from trainer.fit.checkpoint_folder import publish, read_whole, write_file
from trainer.fit.checkpoint_shapes import moments_name, weights_name
from trainer.fit.ranks import Ranks, join_ranks
from trainer.fit.stopping import Stopping

SHAPES = [{"a": (3, 2), "b": (4,)}, {"c": (2,)}]
State = dict[str, Any]


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return join_ranks("cpu")


def state_of(step: int) -> State:
    stopping = Stopping(best_step=5, best_loss=0.5, num_worse=1).to_json()
    return {"format": 1, "step": step, "identity": "run", "stopping": stopping, "seconds": 1.5}


def make(
    folder: Path,
    step: int,
    change: Callable[[Path], object] = lambda _path: None,
    state: object = None,
) -> Path:
    """Write a checkpoint; its manifest agrees with the files after ``change``."""
    new = folder / f".new-step-{step:08d}"
    new.mkdir(parents=True)
    for number, shapes in enumerate(SHAPES):
        weights = {name: torch.ones(shape) for name, shape in shapes.items()}
        moments = {
            f"{name}.{moment}": torch.zeros(shape)
            for name, shape in shapes.items()
            for moment in ("exp_avg", "exp_avg_sq")
        }
        save_file(weights, new / f"weights-{number:05d}.safetensors")
        save_file(moments, new / f"moments-{number:05d}.safetensors")
    content = json.dumps(state_of(step) if state is None else state)
    (new / "state.json").write_text(content)
    change(new)
    files = {}
    for path in sorted(new.iterdir()):
        data = path.read_bytes()
        path.unlink()
        files[path.name] = write_file(path, data)
    return publish(new, files, lambda _point: None)


def moments(path: Path, number: int = 0) -> Path:
    return path / f"moments-{number:05d}.safetensors"


def with_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        tensors = load_file(moments(path))
        change(tensors)
        save_file(tensors, moments(path))

    return changed


def swap(path: Path) -> None:
    moments(path).rename(path / "kept")
    moments(path, 1).rename(moments(path))
    (path / "kept").rename(moments(path, 1))


def a_weight_again(path: Path) -> None:
    save_file({"a": torch.ones(3, 2)}, path / "weights-00001.safetensors")
    save_file({"a.exp_avg": torch.ones(3, 2), "a.exp_avg_sq": torch.ones(3, 2)}, moments(path, 1))


def no_weights(path: Path) -> None:
    for one in path.glob("*.safetensors"):
        one.unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "moments of other files": swap,
    "no moments": lambda path: moments(path).unlink(),
    "moments of another shape": with_tensors(lambda one: one.update({"a.exp_avg": torch.ones(6)})),
    "moments of another type": with_tensors(
        lambda one: one.update({"a.exp_avg": torch.ones(3, 2, dtype=torch.float64)})
    ),
    "a moment is missing": with_tensors(lambda one: one.pop("b.exp_avg_sq")),
    "an unknown moment": with_tensors(lambda one: one.update({"x.exp_avg": torch.ones(1)})),
    "moments that are no tensors": lambda path: moments(path).write_bytes(b"{}"),
    "a long header": lambda path: moments(path).write_bytes(b"\xff" * 7 + b"\0" + b" " * 100),
    "weights that are no tensors": lambda path: (path / "weights-00000.safetensors").write_bytes(b""),
    "a weight in two files": a_weight_again,
    "no weights": no_weights,
}  # fmt: skip

STATES: dict[str, Callable[[State], object]] = {
    "no stopping": lambda one: one.pop("stopping"),
    "no seconds": lambda one: one.pop("seconds"),
    "no step": lambda one: one.pop("step"),
    "another step": lambda one: one.update(step=5),
    "a step that is a text": lambda one: one.update(step="20"),
    "seconds of text": lambda one: one.update(seconds="long"),
    "seconds below zero": lambda one: one.update(seconds=-1),
    "endless seconds": lambda one: one.update(seconds=10**400),
    "stopping is a list": lambda one: one.update(stopping=[]),
    "stopping is empty": lambda one: one.update(stopping={}),
    "stopping has a text": lambda one: one["stopping"].update(best_step="5"),
    "the best step is later": lambda one: one["stopping"].update(best_step=21),
    "the best step is below zero": lambda one: one["stopping"].update(best_step=-1),
    "no loss": lambda one: one["stopping"].update(best_loss=None),
    "a loss beyond numbers": lambda one: one["stopping"].update(best_loss=10**400),
    "a part of a validation": lambda one: one["stopping"].update(num_worse=1.5),
}


def says_why(folder: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the fit resumes from step 10, and that the log says why not from step 20."""
    with caplog.at_level(logging.WARNING):
        found = checkpoints.resume(folder, "run", ranks)
    assert found is not None
    assert found[0].step == found[1].step == 10
    assert "checkpoint step-00000020 is not whole" in caplog.text
    assert not (folder / "step-00000020").exists()
    states = dict(checkpoints.states_of(found[0].path))
    assert {name: tuple(one.exp_avg.shape) for name, one in states.items()} == SHAPES[0] | SHAPES[1]


@pytest.mark.parametrize("name", DAMAGES)
def test_tensors_that_do_not_fit_each_other(
    tmp_path: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20, DAMAGES[name])
    says_why(tmp_path, ranks, caplog)


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_form(
    tmp_path: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    state = state_of(20)
    STATES[name](state)
    make(tmp_path, 10)
    make(tmp_path, 20, state=state)
    says_why(tmp_path, ranks, caplog)


def test_without_another_checkpoint_a_fit_begins_anew(tmp_path: Path, ranks: Ranks) -> None:
    make(tmp_path, 20, swap)
    assert checkpoints.resume(tmp_path, "run", ranks) is None


@pytest.mark.parametrize("state", [{"identity": "other"}, {"format": 2, "identity": "run"}, {}])
def test_a_state_of_another_run_or_release_is_kept(
    tmp_path: Path, ranks: Ranks, state: State
) -> None:
    make(tmp_path, 10)
    path = make(tmp_path, 20, state=state)
    with pytest.raises(RunExists, match="another run"):
        checkpoints.resume(tmp_path, "run", ranks)
    assert path.is_dir()


@pytest.mark.parametrize("name", [weights_name(2), moments_name(weights_name(2))])
def test_tensors_that_the_manifest_does_not_list(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, 20)
    (path / name).write_bytes(b"")
    assert read_whole(tmp_path, 20) == f"the manifest does not list '{name}'"


@pytest.mark.parametrize(
    "name", ["notes.txt", "Thumbs.db", ".nfs01", "._weights-00000.safetensors"]
)
def test_another_file_in_the_only_checkpoint_is_ignored(
    tmp_path: Path, ranks: Ranks, name: str
) -> None:
    """The checkpoint used to be hidden, and the next prune deleted it."""
    path = make(tmp_path, 20)
    (path / name).write_bytes(b"of a user or a file manager")
    found = checkpoints.resume(tmp_path, "run", ranks)
    assert found is not None
    assert found[0].step == 20
    assert path.is_dir()
    assert len(dict(checkpoints.states_of(path))) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 10_000, '{"files": 5}', '{"files": [[]]}', '{"files": {"a\\u0000": 1}}', "{}"]
)  # fmt: skip
def test_a_manifest_of_another_form(tmp_path: Path, text: str) -> None:
    (make(tmp_path, 20) / "manifest.json").write_text(text)
    assert isinstance(read_whole(tmp_path, 20), str)


@pytest.mark.parametrize("text", ["[]", "5", '{"stopping": []}', "[" * 10_000, "{"])
def test_a_damaged_checkpoint_names_no_best_step(tmp_path: Path, text: str) -> None:
    make(tmp_path, 10)
    (make(tmp_path, 20) / "state.json").write_text(text)
    assert checkpoints._best_steps(tmp_path, keep=2) == {5}
