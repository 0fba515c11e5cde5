"""A user removes, moves or rolls back files of a dataset, during a run or between two: nothing is lost or doubled.

Each test is an attack that once broke that promise, by the real command on the replay device.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf.exits import Exit
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.manifests.publish import publish
from llmperf_common.store.upkeep.verify import verify
from tests.integration.conftest import Collected
from tests.support.collecting import Collect, events, replay_file, wait_until, write_kernels
from tests.support.in_process import assert_refused
from tests.support.sampling import NIGHTLY, SLOW
from tests.support.servers.redis_server import RedisServer

pytestmark = pytest.mark.timeout(240)

NUM_TASKS = 24
_SLOW_S = 0.005
QUICK = (
    "--samples-per-kernel", "4",
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.cold_readings=0",
    "--set", "ledger.lease_ttl_s=2",
    "--set", "store.commit_interval_s=0.05",
    "--set", "store.publish_interval_s=0.05",
)  # fmt: skip
"""A task takes some 0.2 s or more, and is published soon after."""


class Attacked:
    """One dataset, the commands that collect it, and what is done to its files meanwhile."""

    def __init__(self, folder: Path) -> None:
        names = [f"k{number:02}" for number in range(NUM_TASKS)]
        self.corpus = write_kernels(folder / "corpus", names)
        slow = [{"kernel": "*", "action": "slow", "seconds": _SLOW_S}]
        self.device = replay_file(folder / "r.json", behaviours=slow)
        self.out = folder / "data"
        self.state = folder / "state"
        self._running: list[subprocess.Popen[str]] = []

    def command(self, *options: str, out: Path | None = None) -> Collect:
        """Return the command."""
        return Collect(
            self.corpus,
            out or self.out,
            self.device,
            (*QUICK, *options),
            {"XDG_STATE_HOME": str(self.state)},
        )

    def start(
        self, *options: str, out: Path | None = None, prefix: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start the command, as the last words of ``prefix``."""
        process = self.command(*options, out=out).start(prefix)
        self._running.append(process)
        return process

    def num_published(self, out: Path | None = None) -> int:
        """Return how many tasks the current manifest lists."""
        manifest = latest_manifest(PosixFilesystem(out or self.out))
        return manifest.num_tasks if manifest else 0

    def wait_for(
        self, num_tasks: int, process: subprocess.Popen[str], out: Path | None = None
    ) -> None:
        """Wait until so many tasks are published by a command that still runs."""
        wait_until(lambda: self.num_published(out) >= num_tasks or process.poll() is not None)
        if process.poll() is not None:
            pytest.fail(f"it ended too early: {process.communicate()}")

    def finish(self, *options: str, out: Path | None = None) -> None:
        """Run the command to its end: it must be a good one, with each task there once."""
        done = self.command(*options, out=out).run()
        self.check(done.returncode, done.stderr, out)

    def check(self, code: int, err: str, out: Path | None = None) -> None:
        """A good end: exit code 0, each task once, nothing wrong with the dataset."""
        assert code == 0, err
        assert "Traceback" not in err
        report = verify(out or self.out)
        assert [str(one) for one in report.problems] == []
        assert report.counts.tasks == NUM_TASKS
        assert report.counts.samples == 4 * NUM_TASKS

    def close(self) -> None:
        """End what still runs."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    """A dataset to be."""
    one = Attacked(tmp_path)
    yield one
    one.close()


def remove_logs(out: Path) -> None:
    """Remove SQLite's write-ahead log and its index."""
    for path in (out / "ledger").glob("*.sqlite-*"):
        path.unlink()


# ------------------------------------------------------------------ the ledger is outdated


@pytest.mark.slow
def test_a_write_ahead_log_removed_after_a_kill(attacked: Attacked) -> None:
    process = attacked.start()
    attacked.wait_for(8, process)
    process.kill()
    process.communicate()
    assert list((attacked.out / "ledger").glob("*-wal")), "there is something to remove"
    remove_logs(attacked.out)
    attacked.finish()
    attacked.finish()


@pytest.mark.slow
def test_a_ledger_copied_before_the_rest_of_a_live_run(attacked: Attacked, tmp_path: Path) -> None:
    process = attacked.start()
    attacked.wait_for(4, process)
    copy = tmp_path / "copy"
    copy.mkdir()
    subprocess.run(["cp", "-r", attacked.out / "ledger", copy], check=True)
    attacked.wait_for(12, process)
    rest = [path for path in attacked.out.iterdir() if path.name != "ledger"]
    subprocess.run(["cp", "-r", *rest, copy], check=False, stderr=subprocess.DEVNULL)
    attacked.finish(out=copy)
    out, err = process.communicate()
    attacked.check(process.returncode, out + err)


@pytest.mark.nightly
def test_a_write_ahead_log_removed_while_one_collects_and_another_starts(
    attacked: Attacked,
) -> None:
    first = attacked.start()
    attacked.wait_for(4, first)
    remove_logs(attacked.out)
    second = attacked.start()
    for process in (second, first):
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    attacked.check(0, err)


# ------------------------------------------------------------------ manifests vanish


def newest(out: Path) -> list[Path]:
    """Return the newest manifest."""
    return sorted(out.glob("manifest-*.json"))[-1:]


def all_of_them(out: Path) -> list[Path]:
    """Return all manifests."""
    return sorted(out.glob("manifest-*.json"))


def all_but_the_first(out: Path) -> list[Path]:
    """Return all manifests but one."""
    return sorted(out.glob("manifest-*.json"))[1:]


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(newest, marks=SLOW),
        pytest.param(all_of_them, marks=NIGHTLY),
        pytest.param(all_but_the_first, marks=SLOW),
    ],
)
def test_manifests_removed_during_a_run(
    attacked: Attacked, which: Callable[[Path], list[Path]]
) -> None:
    process = attacked.start()
    attacked.wait_for(8, process)
    os.kill(process.pid, signal.SIGSTOP)
    for path in which(attacked.out):
        path.unlink()
    os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=100)
    attacked.check(process.returncode, out + err)
    assert len(started(attacked.out)) == NUM_TASKS, "no task was timed again"


def finished(out: Path) -> list[object]:
    """Return the tasks that have finished, one for each time."""
    return [one["task_id"] for one in events(out) if one["event"] == "finished"]


def started(out: Path) -> list[object]:
    """Return the tasks that were claimed, one for each time."""
    return [one["task_id"] for one in events(out) if one["event"] == "claimed"]


# ------------------------------------------------------------------ the folder is not there any more


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param("nothing", marks=NIGHTLY),
        pytest.param("the ledger is lost", marks=SLOW),
        pytest.param("others have done it all", marks=SLOW),
    ],
)
def test_a_folder_that_is_moved_during_a_run(
    attacked: Attacked, tmp_path: Path, meanwhile: str
) -> None:
    slow = ("--set", "store.commit_interval_s=3")
    process = attacked.start(*slow)
    attacked.wait_for(1, process)
    wait_until(lambda: len(finished(attacked.out)) > attacked.num_published())
    moved = tmp_path / "moved"
    attacked.out.rename(moved)
    _, err = process.communicate(timeout=100)
    assert process.returncode == Exit.BAD_INPUT, err
    assert "Traceback" not in err
    assert str(attacked.out) in err
    assert not attacked.out.exists(), "it is not made anew"
    assert f"it is now {moved}" in err
    num_published = attacked.num_published(moved)
    kept = list(attacked.state.rglob("*.parquet"))
    assert [path.parent.name for path in sorted(kept)] == ["kernels", "samples"]
    assert str(kept[0].parents[1]) in err
    num_finished = len(finished(moved))
    assert num_finished > num_published >= 1
    moved.rename(attacked.out)
    if meanwhile == "the ledger is lost":
        shutil.rmtree(attacked.out / "ledger")
    if meanwhile == "others have done it all":
        attacked.state.rename(tmp_path / "aside")
        attacked.finish()
        (tmp_path / "aside").rename(attacked.state)
    attacked.finish()
    num_again = len(finished(attacked.out)) - NUM_TASKS
    is_kept_in_vain = meanwhile == "others have done it all"
    assert (num_again > 0) == is_kept_in_vain, "what was kept is not timed again"
    assert not list(attacked.state.rglob("*.parquet"))


class Mount:
    """A second way to the dataset, for one collector alone, and how it goes."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        target.mkdir()
        self._target = target
        self.prefix: tuple[str, ...] = ()
        path.symlink_to(target)

    def go(self, process: subprocess.Popen[str]) -> None:
        """The path leads nowhere."""
        del process
        self.path.unlink()

    def check(self) -> None:
        """Nothing was made in its place."""
        assert not self.path.is_symlink()
        assert not self.path.exists()


class Replaced(Mount):
    """The path leads to an empty folder, as below a mount."""

    def go(self, process: subprocess.Popen[str]) -> None:
        """Put an empty folder in its place."""
        super().go(process)
        self.path.mkdir()

    def check(self) -> None:
        """Nothing was written to a stranger."""
        assert list(self.path.iterdir()) == []


class Unmounted(Replaced):
    """A real mount, in a namespace of the collector's own."""

    def __init__(self, path: Path, target: Path) -> None:
        super().__init__(path, target)
        path.unlink()
        path.mkdir()
        mount = f'mount --bind {target} {path} && exec "$0" "$@"'
        self.prefix = ("unshare", "--mount", "sh", "-c", mount)

    def go(self, process: subprocess.Popen[str]) -> None:
        """``umount -l`` under the collector."""
        inside = ("nsenter", "--mount", f"--target={process.pid}")
        subprocess.run([*inside, "umount", "-l", self.path], check=True)


def may_mount() -> bool:
    """Whether this user may make mounts of its own."""
    try:
        return subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Mount, marks=SLOW),
        pytest.param(Replaced, marks=SLOW),
        pytest.param(Unmounted, marks=NIGHTLY),
    ],
)
def test_a_folder_lost_to_one_of_two_collectors(
    attacked: Attacked, tmp_path: Path, kind: type[Mount]
) -> None:
    """Their ledger is on a server: the one that has lost the folder could still commit."""
    if kind is Unmounted and not may_mount():
        pytest.skip("this user may not mount")
    mount = kind(tmp_path / "mount", attacked.out)
    server = RedisServer(tmp_path / "redis")
    try:
        ledger = ("--ledger", server.url)
        lost = attacked.start(*ledger, out=mount.path, prefix=mount.prefix)
        attacked.wait_for(4, lost)
        other = attacked.start(*ledger)
        mount.go(lost)
        _, err = lost.communicate(timeout=100)
        assert lost.returncode == Exit.BAD_INPUT, err
        assert "Traceback" not in err
        assert f"{mount.path} is no longer the dataset's folder" in err
        mount.check()
        out, err = other.communicate(timeout=100)
        attacked.check(other.returncode, out + err)
    finally:
        server.kill()


# ------------------------------------------------------------------ what an older version has left


@pytest.mark.parametrize("is_known", [False, True])
def test_a_dataset_that_is_doubled_already_is_told_without_a_traceback(
    copied: Collected, is_known: bool
) -> None:
    """As outdated ledgers have left them: a task in two shards, both listed, and both in the ledger (``is_known``) or not."""
    fs = PosixFilesystem(copied.out)
    before = latest_manifest(fs)
    assert before is not None
    stem = before.of_table("kernels")[0].name.removeprefix("kernels/")
    again = [
        replace(entry, name=f"{entry.table}/again.parquet")
        for entry in before.shards
        if entry.name.endswith(stem)
    ]
    for entry in again:
        fs.put_if_absent(entry.name, fs.read_bytes(f"{entry.table}/{stem}"))
    publish(fs, again, plan_hash=before.plan_hash, epoch=before.epoch)
    if is_known:
        with sqlite3.connect(next((copied.out / "ledger").glob("*.sqlite"))) as db:
            rows = [(one.name, one.rows, one.bytes, one.sha256, one.tasks) for one in again]
            db.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?, 1)", rows)
        db.close()
    for _ in range(2):
        done = copied.collect()
        words = (f"{copied.out} holds", "twice", f"llmperf dataset repair {copied.out}")
        assert_refused(done, Exit.BAD_INPUT, *words)
