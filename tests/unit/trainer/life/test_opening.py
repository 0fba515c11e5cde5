"""Which runs an unsuccessful training removes, and what is said to be in a folder afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from llmperf import api
from llmperf.cli import model
from llmperf.exits import CommandError, Exit
from trainer.life.opening import kept_in, opened
from trainer.run.folder import write_json

IDENTITY = {"config_hash": "a", "dataset_id": "b"}


def begin(folder: Path, identity: Mapping[str, str] = IDENTITY) -> None:
    """Write the files with which a run begins."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", dict(identity))
    write_json(folder / "split.json", {})


def add_checkpoint(folder: Path) -> Path:
    state = folder / "fit" / "checkpoints" / "step-00000004" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    return state


def work(
    out: Path, error: BaseException, *steps: Callable[[Path], object], **options: bool
) -> None:
    """Open ``out`` as a training does that takes ``steps`` and fails before it prepares."""
    with opened(out, IDENTITY, overwrite=options.get("overwrite", False)) as folder:
        for step in steps:
            step(folder)
        raise error


def interrupt(out: Path, *steps: Callable[[Path], object], **options: bool) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(out, KeyboardInterrupt(), *steps, **options)


def test_a_run_that_this_call_began_is_removed(tmp_path):
    interrupt(tmp_path / "new", begin)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    interrupt(tmp_path / "empty", begin)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_run_that_died_before_its_split_is_removed(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    write_json(out / "config.json", IDENTITY)
    interrupt(out, begin)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_of_an_earlier_start_is_kept(tmp_path, overwrite):
    out = tmp_path / "run"
    begin(out)
    state = add_checkpoint(out)
    interrupt(out, begin, overwrite=overwrite)
    assert state.exists()
    assert (out / "config.json").exists()
    state.unlink()
    interrupt(out, overwrite=overwrite)
    assert (out / "split.json").exists(), "the run was there before the call"


def test_a_run_that_replaces_another_one_is_removed(tmp_path):
    out = tmp_path / "run"
    begin(out, {"config_hash": "other", "dataset_id": "b"})
    add_checkpoint(out)
    interrupt(out, begin, overwrite=True)
    assert list(out.iterdir()) == []


def test_checkpoints_of_this_call_are_kept_even_if_the_prepared_data_is_gone(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(OSError, match="full"):
        work(out, OSError("the disk is full"), begin, add_checkpoint)
    assert (out / "fit" / "checkpoints" / "step-00000004").exists()


def test_what_is_kept_is_what_is_there(tmp_path):
    out = tmp_path / "run"
    assert kept_in(out) == f"nothing was kept in {out}"
    begin(out)
    assert kept_in(out) == f"{out} keeps the config and the split"
    add_checkpoint(out)
    assert kept_in(out) == f"{out} keeps the checkpoints (newest: step 4)"
    (out / "prepared").mkdir()
    assert kept_in(out) == f"{out} keeps the prepared data and the checkpoints (newest: step 4)"
    write_json(out / "published.json", {})
    assert kept_in(out) == f"the run in {out} is finished"


def test_the_command_says_what_an_interrupted_run_keeps(tmp_path, monkeypatch):
    def is_interrupted(**_arguments: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    begin(out)
    add_checkpoint(out)
    monkeypatch.setattr(api, "train", is_interrupted)
    with pytest.raises(CommandError) as caught:
        model.train(data="data", out=out)
    assert str(caught.value) == f"interrupted: {kept_in(out)}; run the same command again to resume"
    assert "step 4" in str(caught.value)
    assert caught.value.exit_code == Exit.INTERRUPTED
