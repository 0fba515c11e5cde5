"""Names in a dataset's folder that LLMPerf would not give, and numbers that no run reaches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from llmperf.exits import Exit
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.epochs import MAX_EPOCH, latest_epoch, take_next_epoch
from tests.support.collecting import replay_file, write_kernels
from tests.support.factories.dataset_factory import make_dataset
from tests.support.in_process import Done, assert_refused, llmperf

FEWEST = ("--samples-per-kernel", "2", "--set", "timing.spin_up_ms=0")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in ``data``."""
    folder = tmp_path_factory.mktemp("run")
    assert collect(folder).code == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def collect(folder: Path) -> Done:
    corpus = write_kernels(folder / "kernels", ["k"])
    device = replay_file(folder / "r.json")
    named = ("--corpus", corpus, "--out", folder / "data", "--device", device)
    return llmperf("collect", *named, *FEWEST)


def set_epoch(data: Path, epoch: int) -> None:
    newest = max(data.glob("manifest-*.json"))
    document = json.loads(newest.read_text())
    newest.write_text(json.dumps(document | {"epoch": epoch}))


@pytest.mark.parametrize(
    "name",
    [
        "trash/99999999T999999-kernels-x.parquet",
        "kernels/compact-99999999T999999-0f.parquet",
        "manifest-\u0660\u0660\u0660\u0660\u0660\u0669.json",
        "manifest-0000009.json",
        "manifest-" + "9" * 30 + ".json",
    ],
)
@pytest.mark.parametrize("command", ["compact", "repair", "stats"])
def test_a_name_that_is_no_time_and_no_version(tmp_path: Path, name: str, command: str) -> None:
    data = make_dataset(tmp_path / "data")
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).write_bytes(b"{}")
    done = llmperf("dataset", command, data)
    assert done.code == 0, done.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: (data / "epochs/000002").mkdir(), marks=pytest.mark.slow),
        pytest.param(
            lambda data: [
                (data / f"epochs/00000{n}").symlink_to(data / "nowhere") for n in (2, 3, 4)
            ],
            marks=pytest.mark.slow,
        ),
        lambda data: (data / "epochs" / ("9" * 23)).touch(),
        lambda data: set_epoch(data, 10**11),
    ],
    ids=["a folder", "links to nothing", "of 23 digits", "the manifest's"],
)
def test_an_epoch_that_cannot_be_taken_is_passed_over(run: Path, change: Change) -> None:
    data = run / "data"
    shutil.rmtree(data / "ledger")
    change(data)
    done = collect(run)
    assert done.code == 0, done.err
    assert len(list((data / "epochs").iterdir())) <= 5
    assert llmperf("dataset", "verify", data).code == 0


def test_a_ledger_that_is_older_than_the_manifest_is_rebuilt(run: Path) -> None:
    data = run / "data"
    set_epoch(data, 10**11)
    done = collect(run)
    assert done.code == 0, done.err
    assert latest_epoch(PosixFilesystem(data)) == 10**11 + 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("epoch", [MAX_EPOCH, 10**18])
@pytest.mark.parametrize("command", ["collect", "collect with its ledger", "repair"])
def test_a_manifest_of_the_last_epoch(run: Path, command: str, epoch: int) -> None:
    data = run / "data"
    if command != "collect with its ledger":
        shutil.rmtree(data / "ledger")
    set_epoch(data, epoch)
    if command == "repair":
        next((data / "samples").iterdir()).write_bytes(b"damaged")
    done = llmperf("dataset", "repair", data) if command == "repair" else collect(run)
    assert done.code == Exit.BAD_INPUT
    assert f"has epoch {epoch}" in done.err
    assert len(list((data / "epochs").iterdir())) == 1


def test_epochs_are_taken_above_the_manifests(tmp_path: Path) -> None:
    fs = PosixFilesystem(tmp_path)
    assert take_next_epoch(fs, who="a", after=6) == 7
    assert take_next_epoch(fs, who="b", after=3) == 8
    assert latest_epoch(fs) == 8


def test_the_folder_of_events_is_a_file(run: Path) -> None:
    shutil.rmtree(run / "data" / "events")
    (run / "data" / "events").touch()
    assert_refused(collect(run), Exit.BAD_INPUT, "events is not a folder", "remove it")
