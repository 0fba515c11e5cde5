"""Death at each write of a run, one run a write: of the collector (SQLite, Redis), and of the Redis server under it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from llmperf_common.store.upkeep.verify import verify
from tests.chaos.kills import committed
from tests.support.collecting import (
    COMMIT_AT_ONCE,
    SAMPLES_A_KERNEL,
    replay_file,
    write_kernels,
)
from tests.support.processes.dying_store import LOG_VARIABLE, VICTIM_VARIABLE
from tests.support.sampling import SHARES, numbers_of
from tests.support.servers.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KERNELS = ("k0", "k1")


class Runs:
    """The same command, into a folder of its own for each write at which it dies."""

    def __init__(self, folder: Path, ledger: str) -> None:
        self._folder = folder
        self._ledger = ledger
        self._corpus = write_kernels(folder / "kernels", KERNELS)
        self._device = replay_file(folder / "r.json")

    def data(self, step: int) -> Path:
        return self._folder / f"data-{step}"

    def start(self, step: int, *, dies: bool, **variables: str) -> subprocess.Popen[str]:
        command = ["collect", "--corpus", str(self._corpus), "--out", str(self.data(step))]
        command += ["--device", self._device, "--ledger", self._ledger, *COMMIT_AT_ONCE]
        module = [
            sys.executable,
            "-m",
            "tests.support.processes.dying_store",
            str(step if dies else 0),
        ]
        return subprocess.Popen(
            [*module, "llmperf", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )

    def finish(self, process: subprocess.Popen[str]) -> None:
        _, told = process.communicate(timeout=100)
        assert process.returncode == 0, told

    def num_writes(self) -> int:
        log = self._folder / "writes"
        self.finish(self.start(0, dies=False, **{LOG_VARIABLE: str(log)}))
        return len(log.read_text("utf-8").splitlines())

    def assert_whole(self, step: int, before: Mapping[str, object]) -> None:
        report = verify(self.data(step))
        assert not report.problems
        assert (report.counts.ok, report.counts.tasks) == (
            len(KERNELS) * SAMPLES_A_KERNEL,
            len(KERNELS),
        )
        after = committed(self.data(step))
        assert len(after) == len(KERNELS) * SAMPLES_A_KERNEL
        assert after.items() >= before.items(), "what was published stays as it was"


def for_each_write(runs: Runs, share: str, die_and_go_on: Callable[[int], bool]) -> None:
    num_writes = runs.num_writes()
    assert num_writes >= 8, "the fewest: a busy machine commits several tasks at once"
    steps = numbers_of(share, num_writes)
    missed = [step for step in steps if not die_and_go_on(step)]
    # The number of manifests varies a little: a run may end before its last steps.
    assert len(missed) <= 3, (missed, num_writes)
    assert all(step > 0.75 * num_writes for step in missed), (missed, num_writes)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    one = RedisServer(tmp_path / "redis")
    yield one
    one.kill()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_collector_dies_at_each_write(
    tmp_path: Path, server: RedisServer, kind: str, share: str
) -> None:
    runs = Runs(tmp_path, server.url if kind == "redis" else "sqlite")

    def die_and_go_on(step: int) -> bool:
        dying = runs.start(step, dies=True)
        dying.communicate(timeout=60)
        before = committed(runs.data(step))
        runs.finish(runs.start(step, dies=False))
        runs.assert_whole(step, before)
        return dying.returncode == -9

    for_each_write(runs, share, die_and_go_on)


@pytest.mark.parametrize("share", SHARES)
def test_redis_dies_at_each_write(tmp_path: Path, server: RedisServer, share: str) -> None:
    runs = Runs(tmp_path, server.url)

    def die_and_go_on(step: int) -> bool:
        process = runs.start(step, dies=True, **{VICTIM_VARIABLE: str(server.pid)})
        has_died = server.await_end(lambda: process.poll() is not None)
        before = committed(runs.data(step)) if runs.data(step).is_dir() else {}
        if has_died:
            server.start()
        _, told = process.communicate(timeout=100)
        if (
            process.returncode != 0
        ):  # before it had any ledger it raises at once, and nothing is waited for
            assert process.returncode == 3, told
            assert "cannot be reached" in told
            runs.finish(runs.start(step, dies=False))
        runs.assert_whole(step, before)
        return has_died

    for_each_write(runs, share, die_and_go_on)
