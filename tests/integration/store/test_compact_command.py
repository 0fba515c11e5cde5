"""``llmperf dataset compact`` amid a life of collecting, killed at each change it makes, on a folder and on S3."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem
from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.manifests.run import RUN_LOCK
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.verify import verify
from tests.integration.collect.test_collect_s3 import start_dying
from tests.integration.conftest import FAST, Collected
from tests.support.collecting import write_kernels
from tests.support.factories.dataset_factory import make_dataset
from tests.support.in_process import assert_refused, llmperf
from tests.support.sampling import NIGHTLY, slow_but_each
from tests.support.servers.s3_server import S3Server, new_prefix

NUM_STEPS = 17
"""Two groups of a kernels and a samples shard, a segment, the manifest, eight earlier versions that go, two files of the card; the
last is none."""


def rows_of(location: str) -> list[dict[str, object]]:
    """Every sample, by id."""
    rows = open_dataset(location).samples().to_pylist()
    return sorted(rows, key=lambda row: str(row["sample_id"]))


def upload(folder: Path, fs: Filesystem) -> None:
    """Copy a dataset."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".lock"):
            fs.put_if_absent(str(path.relative_to(folder)), path.read_bytes())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight tasks in eight pairs of shards of four rows."""
    return make_dataset(tmp_path_factory.mktemp("small") / "d", kernels=8, kernels_per_shard=1)


@pytest.fixture(scope="module")
def moto_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture(params=["folder", pytest.param("s3", marks=NIGHTLY)])
def copy_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], str]:
    """Copies a dataset to a new place, which it returns."""
    places = iter(range(100))
    if request.param == "folder":

        def copy_here(source: Path) -> str:
            return str(shutil.copytree(source, tmp_path / str(next(places))))

        return copy_here
    server: S3Server = request.getfixturevalue("moto_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    def copy_there(source: Path) -> str:
        location = new_prefix(server.endpoint)
        upload(source, open_filesystem(location))
        return location

    return copy_there


def compaction(location: str) -> list[str]:
    return ["dataset", "compact", location, "--target-rows", "16"]


def kill_and_check(location: str, step: int | str) -> bool:
    """Die at a step, look, go on, look again; whether it died."""
    before = rows_of(location)
    dying = start_dying(step, compaction(location))
    dying.communicate(timeout=60)
    assert verify(location).counts.tasks == 8
    assert not [problem for problem in verify(location).problems if problem.kind != "orphan"]
    assert rows_of(location) == before
    done = llmperf(*compaction(location))
    assert done.code == 0, done.err
    assert verify(location).clean
    assert rows_of(location) == before
    assert len(open_dataset(location).shards("samples")) == 2
    return dying.returncode == -9


@pytest.mark.parametrize(
    "step", slow_but_each(4, ["manifest-", "kernels/compact", "samples/compact", "README"])
)
def test_sigkill_loses_and_doubles_nothing(small: Path, tmp_path: Path, step: str) -> None:
    assert kill_and_check(str(shutil.copytree(small, tmp_path / "d")), step)


@pytest.mark.slow
def test_sigkill_at_each_step(small: Path, copy_of: Callable[[Path], str]) -> None:
    died = [kill_and_check(copy_of(small), step) for step in range(1, NUM_STEPS + 1)]
    assert died == [True] * (NUM_STEPS - 1) + [False]


@pytest.mark.slow
def test_sigkill_on_s3_before_the_manifest(
    small: Path, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    location = new_prefix(moto_server.endpoint)
    upload(small, open_filesystem(location))
    assert kill_and_check(location, "manifest-")


def test_the_command_says_what_it_did(small: Path, tmp_path: Path) -> None:
    data = shutil.copytree(small, tmp_path / "d")
    with PosixFilesystem(data).lock(RUN_LOCK, exclusive=False, wait=False):
        assert_refused(llmperf(*compaction(str(data))), 3, str(data), "no collector at work")
    done = llmperf(*compaction(str(data)))
    assert "8 pairs of shards are now 2" in done.err
    document = json.loads(llmperf(*compaction(str(data)), "--json").out)
    assert (document["num_pairs_before"], document["num_pairs"]) == (2, 2)
    assert len(document["waiting"]) == 16
    assert llmperf("dataset", "compact", str(data), "--target-rows", "0").code == 2


@pytest.mark.slow
def test_a_collect_goes_on_after_it(copied: Collected) -> None:
    """With its ledger, and then without: nothing is done again, nothing is done twice."""
    more = ("--set", "store.commit_interval_s=0")
    one = Collected(copied.corpus, copied.device, copied.out.with_name("one"))
    assert one.collect(*more, "--max-time", "0.001").code == 0  # as far as it came
    assert one.collect(*more).code == 0
    before = rows_of(str(one.out))
    assert len(open_dataset(one.out).shards("samples")) > 1
    done = llmperf("dataset", "compact", one.out)
    assert done.code == 0, done.err
    version = open_dataset(one.out).manifest.version
    done = one.collect(*more)
    assert done.code == 0, done.err
    assert open_dataset(one.out).manifest.version == version, "its ledger is not rebuilt"
    shutil.rmtree(one.out / "ledger")
    done = one.collect(*more)
    assert done.code == 0, done.err
    assert "pending 0" in done.err
    assert rows_of(str(one.out)) == before
    checked = verify(one.out)
    assert checked.clean
    assert len(open_dataset(one.out).shards("samples")) == 1


@pytest.mark.slow
def test_compacting_an_unfinished_run(copied: Collected, tmp_path: Path) -> None:
    """Its ledger has leases and shards of its own; what is pending is then collected."""
    location = tmp_path / "unfinished"
    corpus = write_kernels(tmp_path / "kernels", [f"k{number}" for number in range(6)])
    command = [
        "collect",
        "--corpus",
        str(corpus),
        "--device",
        copied.device,
        "--out",
        str(location),
    ]
    now = [f"store.{key}_interval_s=0" for key in ("commit", "publish")]
    options = [*map(str, FAST), "--set", now[0], "--set", now[1], "--set", "ledger.claim_ahead=1"]
    dying = start_dying("manifest-000003", [*command, *options])
    dying.communicate(timeout=60)
    assert 0 < open_dataset(location).num_tasks < 6
    assert llmperf("dataset", "compact", location).code == 0
    done = llmperf(*command, *options)
    assert done.code == 0, done.err
    assert verify(location).clean
    assert verify(location).counts.ok == 24
