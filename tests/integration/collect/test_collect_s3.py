"""A whole run whose dataset lies in S3: collect, resume after death at each step, verify, read, report. Moto over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmperf as package
from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import replay_file, wait_until, write_kernels
from tests.support.in_process import assert_refused, llmperf
from tests.support.processes.dying_store import LOG_VARIABLE
from tests.support.sampling import SHARES, numbers_of
from tests.support.servers.s3_server import S3Server, new_prefix

KERNELS = ("k0", "k1", "k2")
SAMPLES = 4
FAST = (
    "--samples-per-kernel", str(SAMPLES),
    "--set", "timing.spin_up_ms=0",
    "--set", "store.commit_interval_s=0",
    "--set", "store.publish_interval_s=0.05",
)  # fmt: skip


@pytest.fixture(scope="module")
def moto_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def location(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield new_prefix(moto_server.endpoint)
    moto_server.faults.ignores_conditions = False


def arguments(folder: Path, location: str) -> list[str]:
    """The command; the same each time."""
    corpus = write_kernels(folder / "kernels", KERNELS)
    device = replay_file(folder / "r.json")
    return ["collect", "--corpus", str(corpus), "--out", location, "--device", device, *FAST]


def start_dying(step: int | str, command: list[str]) -> subprocess.Popen[str]:
    """Start ``llmperf`` so that it dies at a change of the store (0: it does not)."""
    module = [sys.executable, "-m", "tests.support.processes.dying_store", str(step), "llmperf"]
    return subprocess.Popen(
        [*module, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def assert_whole(location: str) -> None:
    report = verify(location)
    assert not report.problems
    assert not report.notes
    assert (report.counts.ok, report.counts.tasks) == (len(KERNELS) * SAMPLES, len(KERNELS))
    fs = open_filesystem(location)
    manifest = latest_manifest(fs)
    assert manifest is not None
    on_store = {f"{t}/{n}" for t in ("samples", "kernels", "devices") for n in fs.names(t)}
    assert on_store == manifest.shard_names
    assert ".run.lock" not in fs.folders()


def copy_dataset(location: str, copy: str) -> None:
    source, target = open_filesystem(location), open_filesystem(copy)
    for folder in ("", *(f"{name}/" for name in source.folders())):
        for name in source.names(folder.rstrip("/")):
            target.replace(folder + name, source.read_bytes(folder + name))


@pytest.mark.slow
def test_collect_verify_read_and_report(location: str, tmp_path: Path) -> None:
    command = arguments(tmp_path, location)
    done = llmperf(*command)
    assert done.code == 0, done.err
    assert_whole(location)
    assert "README.md" in open_filesystem(location).names()
    assert package.open_dataset(location).samples().num_rows == len(KERNELS) * SAMPLES
    state = json.loads(llmperf("status", location, "--json").out)
    assert (state["tasks_done"], state["collecting"]) == (len(KERNELS), False)
    for one in (
        ("verify",),
        ("stats",),
        ("card",),
        ("export", "--out", tmp_path / "csv", "--format", "csv"),
    ):
        done = llmperf("dataset", one[0], location, *one[1:])
        assert done.code == 0, done.err
    done = llmperf("report", location, "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "data" in (tmp_path / "page.html").read_text("utf-8")
    kept = sorted(path.name for path in (tmp_path / "state" / "llmperf").glob("*/*"))
    assert kept[0] == "events"
    assert kept[1].startswith("ledger-")
    copy, merged = location + "-copy", location + "-merged"
    copy_dataset(location, copy)
    done = llmperf("dataset", "merge", location, copy, "--out", merged)
    assert done.code == 0, done.err
    assert verify(merged).clean
    done = llmperf("dataset", "merge", location, copy, "--out", merged)
    assert_refused(done, 2, "is not empty")
    done = llmperf("dataset", "merge", location, location + "/", "--out", merged)
    assert_refused(done, 2, "name two or more datasets")


def test_a_store_without_conditional_writes_is_refused(
    moto_server: S3Server, location: str, tmp_path: Path
) -> None:
    moto_server.faults.ignores_conditions = True
    done = llmperf(*arguments(tmp_path, location))
    assert_refused(done, 3, location, "ignores If-None-Match", "conditional writes")
    assert open_filesystem(location).names() == []


def test_what_is_written_here_is_not_written_to_a_folder_named_s3(
    location: str, tmp_path: Path
) -> None:
    done = llmperf("dataset", "export", location, "--out", "s3://bucket/x")
    assert_refused(done, 2, "s3:/bucket/x", "name a local folder")


def die_and_go_on(step: int | str, location: str, folder: Path) -> bool:
    """Run into SIGKILL at ``step`` and then to the end; whether it came to that step."""
    command = arguments(folder, location)
    dying = start_dying(step, command)
    dying.communicate(timeout=60)
    done = llmperf(*command)
    assert done.code == 0, done.err
    assert_whole(location)
    return dying.returncode == -9


def steps_of(location: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the changes that a whole run makes, in order."""
    log = folder / "steps"
    monkeypatch.setenv(LOG_VARIABLE, str(log))
    process = start_dying(0, arguments(folder, location))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    monkeypatch.delenv(LOG_VARIABLE)
    return log.read_text("utf-8").splitlines()


@pytest.mark.slow
def test_sigkill_between_the_two_shards_of_a_commit(location: str, tmp_path: Path) -> None:
    assert die_and_go_on("samples/", location, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", SHARES)
def test_sigkill_at_each_step(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    num_steps = len(steps_of(location + "-whole", tmp_path, monkeypatch))
    assert num_steps > 10
    steps = numbers_of(share, num_steps)
    missed = [step for step in steps if not die_and_go_on(step, f"{location}-{step}", tmp_path)]
    # The number of manifests varies a little: a run may end before its last steps.
    assert len(missed) <= 3, (missed, num_steps)
    assert all(step > 0.75 * num_steps for step in missed), (missed, num_steps)


@pytest.mark.slow
def test_a_collector_at_work_is_seen(location: str, tmp_path: Path) -> None:
    slow = replay_file(
        tmp_path / "slow.json", behaviours=[{"kernel": "*", "action": "slow", "seconds": 0.5}]
    )
    command = arguments(tmp_path, location)
    command[command.index("--device") + 1] = slow
    process = start_dying(0, command)
    wait_until(
        lambda: json.loads(llmperf("status", location, "--json").out or "{}").get(
            "collecting", False
        )
    )
    process.kill()
    process.communicate()
    assert not json.loads(llmperf("status", location, "--json").out)["collecting"]
