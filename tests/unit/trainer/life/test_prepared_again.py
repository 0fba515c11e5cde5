"""A started language model whose prepared data is removed or damaged: what the next start does."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trainer.life.test_language_model import alone, config, dataset
from trainer.data.token_store import Targets, write_token_store
from trainer.data.tokens import Tokens
from trainer.errors import BadInput, Interrupted
from trainer.fit.checkpoint_folder import write_file
from trainer.life import preparing
from trainer.life.train import train

SETTINGS = config("regressor.offset=gbdt", "gbdt.tune=false", "gbdt.num_rounds=20")


def start(out: Path) -> list[str]:
    """Train for one step, as if a signal had come then; return the lines of progress."""
    lines: list[str] = []
    conductor = alone()
    conductor.stop.asked.set()
    with pytest.raises(Interrupted):
        train(dataset(), SETTINGS, out, lines.append, conductor=conductor)
    return lines


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("started") / "run"
    start(out)
    return out


@pytest.fixture
def out(started, tmp_path) -> Path:
    return shutil.copytree(started, tmp_path / "run")


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def checkpoints(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "fit" / "checkpoints").iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_resume_that_fails_while_it_prepares_keeps_the_checkpoints(out, monkeypatch, error):
    def fails(*_args: object, **_kwargs: object) -> None:
        raise error

    shutil.rmtree(out / "prepared")
    before = content_of(out)
    assert checkpoints(out) == ["step-00000001"]
    monkeypatch.setattr(preparing, "write_token_store", fails)
    with pytest.raises(type(error)):
        train(dataset(), SETTINGS, out, lambda _line: None, conductor=alone())
    assert content_of(out) == before


@pytest.mark.parametrize("removed", ["prepared", "prepared/tokens", "prepared/tokens/store.json"])
def test_a_removed_token_cache_is_written_again(started, out, removed):
    path = out / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    lines = start(out)
    assert content_of(out / "prepared") == content_of(started / "prepared")
    assert sorted(path.name for path in out.iterdir()) == sorted(
        path.name for path in started.iterdir()
    )
    assert checkpoints(out) == ["step-00000001", "step-00000002"]
    assert not any("step 1/12" in line for line in lines), "it resumed, it did not begin again"


def test_a_changed_token_cache_is_refused_and_the_advice_of_the_message_works(out):
    path = out / "prepared" / "tokens" / "log2_ns.npy"
    whole = path.read_bytes()
    np.save(path, np.load(path) + np.float32(3.0))
    assert path.stat().st_size == len(whole)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"log2_ns\.npy has another sha256.*delete the folder"):
            train(dataset(), SETTINGS, out, lambda _line: None, conductor=alone())
        assert checkpoints(out) == ["step-00000001"]
    shutil.rmtree(path.parent)
    start(out)
    assert path.read_bytes() == whole
    assert checkpoints(out) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("has_hashes", [True, False])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("prompt/prompt.json", "cut"),
        ("prompt/tokenizer.json", "cut"),
        ("prompt/tokenizer.json", "removed"),
        ("offset", "removed"),
    ],
)
def test_other_damaged_files_are_refused_before_the_fit(out, name, change, has_hashes):
    """They are used only after the fit."""
    prepared = out / "prepared"
    if not has_hashes:  # as an older release wrote it
        content = json.loads((prepared / "regressor.json").read_text())
        del content["files"]
        (prepared / "regressor.json").write_text(json.dumps(content))
    path = prepared / name
    path = path if path.is_file() else max(path.iterdir(), key=lambda one: one.stat().st_size)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    lines: list[str] = []
    with pytest.raises(BadInput, match=rf"{path.parent}.*delete the folder .*/prepared and train"):
        train(dataset(), SETTINGS, out, lines.append, conductor=alone())
    assert not any("step" in line for line in lines)
    assert checkpoints(out) == ["step-00000001"]


def test_a_prompt_that_was_edited_is_refused(out):
    path = out / "prepared" / "prompt" / "prompt.json"
    path.write_text(path.read_text().replace("\n", " \n"))
    with pytest.raises(BadInput, match=r"prompt\.json: is missing, or is not as it was written"):
        train(dataset(), SETTINGS, out, lambda _line: None, conductor=alone())


@pytest.mark.parametrize("key", ["tokens", "prompts"])
def test_other_tokens_than_those_of_the_checkpoints_are_refused(out, key):
    spec = out / "prepared" / "regressor.json"
    content = json.loads(spec.read_text())
    first = next(iter(content[key]))
    content[key][first] = "another"
    spec.write_text(json.dumps(content))
    shutil.rmtree(out / "prepared" / "tokens")
    before = content_of(out)
    with pytest.raises(BadInput, match=f"differs .*{key}.*name a new folder"):
        train(dataset(), SETTINGS, out, lambda _line: None, conductor=alone())
    assert content_of(out) == before


def other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare tokens as another version of LLMPerf might."""

    def write(folder: Path, *, tokens: Tokens, targets: Targets) -> None:
        ids = np.roll(tokens.prefix_ids, 1)
        write_token_store(folder, tokens=replace(tokens, prefix_ids=ids), targets=targets)

    monkeypatch.setattr(preparing, "write_token_store", write)


def test_other_tokens_are_refused_after_the_whole_prepared_folder_was_removed(
    started, out, monkeypatch
):
    shutil.rmtree(out / "prepared")
    other_tokens(monkeypatch)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"step-00000001: was made with other tokens .*restore"):
            train(dataset(), SETTINGS, out, lambda _line: None, conductor=alone())
        assert checkpoints(out) == ["step-00000001"]
    shutil.rmtree(out / "prepared")
    shutil.copytree(started / "prepared", out / "prepared")
    start(out)
    assert checkpoints(out) == ["step-00000001", "step-00000002"]


def test_checkpoints_of_older_releases_do_not_name_their_tokens(out):
    checkpoint = out / "fit" / "checkpoints" / "step-00000001"
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").unlink()
    del state["tokens"]
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["state.json"] = write_file(
        checkpoint / "state.json", json.dumps(state).encode()
    )
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    start(out)
    assert checkpoints(out) == ["step-00000001", "step-00000002"]


def test_a_run_whose_cache_has_no_recorded_hashes_gets_a_new_cache(started, out):
    """Runs of older releases have no entry ``tokens``."""
    spec = out / "prepared" / "regressor.json"
    content = json.loads(spec.read_text())
    del content["tokens"]
    spec.write_text(json.dumps(content))
    shutil.rmtree(out / "prepared" / "tokens")
    start(out)
    assert content_of(out / "prepared") == content_of(started / "prepared")
