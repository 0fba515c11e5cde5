"""A foreign, unfinished run: what its ``prepared/`` names elsewhere is never opened."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.files import plain_files
from tests.unit.trainer.life.test_language_model import alone, config, dataset
from trainer.errors import BadInput, Interrupted
from trainer.life import language
from trainer.life.identity import Init
from trainer.life.preparing import check_prepared
from trainer.life.train import train


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("started") / "run"
    conductor = alone()
    conductor.stop.asked.set()
    with pytest.raises(Interrupted):
        train(dataset(), config(), out, lambda _line: None, conductor=conductor)
    return out


@pytest.fixture
def out(started: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(started, tmp_path / "run"))


@pytest.fixture
def private(tmp_path: Path) -> Path:
    place = tmp_path / "private"
    place.mkdir()
    (place / "config.json").write_text("{}")
    return place


def with_content(out: Path, **values: object) -> None:
    file = out / "prepared" / "regressor.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def files_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "prepared" / "regressor.json").read_text())["files"])


def resumed(out: Path) -> None:
    train(dataset(), config(), out, lambda _line: None, conductor=alone())


def test_initial_weights_that_only_the_run_names_are_not_read(
    out: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(language, "built", lambda *words: read.append(words))
    with_content(out, init=str(private))
    with pytest.raises(BadInput, match=r"regressor\.json: names the .*private.*name a new --out"):
        resumed(out)
    assert read == []


def test_initial_weights_that_only_the_command_names_are_refused(out: Path, private: Path) -> None:
    with pytest.raises(BadInput, match=r"names no initial weights, .*--init .*private"):
        check_prepared(out / "prepared", Init(folder=private, digest="x"))


def test_initial_weights_may_have_moved(out: Path, private: Path) -> None:
    with_content(out, init="/elsewhere")
    check_prepared(out / "prepared", Init(folder=private, digest="x"))


@pytest.mark.parametrize("name", ["absolute", "../../private/config.json", "tokens/store.json"])
def test_files_that_do_not_belong_to_the_run_are_not_hashed(
    out: Path, private: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    name = str(private / "config.json") if name == "absolute" else name
    hashed = hashlib.sha256((out / "prepared" / name).read_bytes()).hexdigest()
    with_content(out, files=files_of(out) | {name: hashed})
    opened: list[str] = []
    plain = plain_files.check_plain

    def noted(path: Path, **words: Any) -> None:
        opened.append(str(path))
        plain(path, **words)

    monkeypatch.setattr("trainer.life.preparing.check_plain", noted)
    with pytest.raises(BadInput, match=f"{name}: is missing, or is not as it was written"):
        resumed(out)
    assert not any(one.endswith(name) for one in opened)


def test_a_link_out_of_the_prepared_folder_is_not_followed(out: Path, private: Path) -> None:
    (out / "prepared" / "prompt" / "more.json").symlink_to(private / "config.json")
    hashed = hashlib.sha256(b"{}").hexdigest()
    with_content(out, files=files_of(out) | {"prompt/more.json": hashed})
    with pytest.raises(BadInput, match=r"is a link that leads out of .*delete "):
        check_prepared(out / "prepared", None)


@pytest.mark.parametrize("files", [[[1, "x"], ["zz", "y"]], {"prompt/a": 1}, "x", None])
def test_hashes_that_are_no_texts_are_refused(out: Path, files: object) -> None:
    with_content(out, files=files)
    with pytest.raises(BadInput, match=r"regressor\.json.*delete .* new --out"):
        resumed(out)


def test_an_additional_file_is_named_as_what_it_is(out: Path) -> None:
    (out / "prepared" / "prompt" / ".DS_Store").write_text("x")
    with pytest.raises(BadInput, match=r"/prompt/\.DS_Store: does not belong .*: remove it$"):
        resumed(out)


def test_a_name_from_the_file_is_printed_harmlessly(out: Path) -> None:
    with_content(out, files=files_of(out) | {"\x1b[2J" + "a" * 999: "x"})
    with pytest.raises(BadInput, match=r"/\\x1b\[2Ja+: is missing") as refused:
        resumed(out)
    assert len(str(refused.value)) < 900


@pytest.mark.parametrize("folder", ["prompt", "offset"])
def test_a_linked_folder_is_refused_before_its_files_are_listed(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    place = out / "prepared" / folder
    if place.exists():
        place.rename(tmp_path / "moved")
    else:
        (tmp_path / "moved").mkdir()
    place.symlink_to(tmp_path / "moved")
    monkeypatch.setattr("trainer.life.preparing._names_in", None)
    with pytest.raises(BadInput, match=f"{folder}: is a link, not a folder of the run"):
        check_prepared(out / "prepared", None)
