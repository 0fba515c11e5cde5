"""A fault before and after each call of the commit path: SQLite and Redis on a folder, SQLite's ledger for a dataset in S3.

``test_commit_steps.py`` and ``test_collect_s3.py`` count the writes; here each point has a name and is met for certain, those
between two writes too. From step 2 on at least one task is committed before the fault, so that it could be lost.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.tables.shard import decode
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.verify import verify
from tests.chaos.kills import committed, readings_of
from tests.support.collecting import (
    COMMIT_AT_ONCE,
    SAMPLES_A_KERNEL,
    replay_file,
    write_kernels,
)
from tests.support.processes.dying_at_point import COMMITS_VARIABLE, ENCODE, NEVER, Point, When
from tests.support.processes.dying_store import VICTIM_VARIABLE
from tests.support.sampling import at_night_unless, every
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.s3_server import S3Server, new_prefix

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

KERNELS = ("k0", "k1", "k2")
BEFORE, AFTER, UNANSWERED = When.BEFORE, When.AFTER, When.UNANSWERED

POINTS = (
    # 1: a task is leased and timed
    Point(BEFORE, "claim", 0),
    Point(AFTER, "claim", 0),
    # 1 to 2: its results are in memory; both shards are encoded, kernels first
    Point(BEFORE, ENCODE, 1),
    Point(BEFORE, "put_if_absent", 1, "kernels/"),
    # 3
    Point(AFTER, "put_if_absent", 1, "kernels/"),
    Point(AFTER, "read_bytes", 1, "kernels/"),
    # 4
    Point(BEFORE, "put_if_absent", 1, "samples/"),
    Point(AFTER, "put_if_absent", 1, "samples/"),
    Point(AFTER, "read_bytes", 1, "samples/"),
    # 5
    Point(BEFORE, "commit", 1),
    Point(AFTER, "commit", 2),
    # 5 to 6
    Point(BEFORE, "elect_publisher", 2),
    Point(AFTER, "elect_publisher", 2),
    Point(BEFORE, "unpublished", 2),
    Point(AFTER, "unpublished", 2),
    Point(BEFORE, "check_names", 2),
    Point(AFTER, "check_names", 2),
    Point(BEFORE, "put_if_absent", 2, "segments/"),
    Point(AFTER, "put_if_absent", 2, "segments/"),
    Point(BEFORE, "put_if_absent", 2, "manifest-"),
    # 6
    Point(AFTER, "put_if_absent", 2, "manifest-"),
    Point(BEFORE, "remove", 2, "manifest-"),
    Point(AFTER, "remove", 2, "manifest-"),
    # 7
    Point(BEFORE, "mark_published", 2),
    Point(AFTER, "mark_published", 2),
)
OF_A_SERVER = tuple(point for point in POINTS if point.call != ENCODE)
OF_A_REBUILD = (
    Point(AFTER, "put_if_absent", 0, "epochs/"),
    Point(AFTER, "retire", 0),
    Point(AFTER, "put_if_absent", 0, "segments/"),
    Point(AFTER, "put_if_absent", 0, "manifest-"),
    Point(AFTER, "create", 0),
)
OF_A_SWEEP = (Point(BEFORE, "move", 1, "samples/"), Point(AFTER, "move", 1, "kernels/"))
_OF_THE_LEDGER_ALONE = ("elect_publisher", "unpublished", "check_names", "retire", "create")


def at_each(points: Sequence[Point]) -> list[Any]:
    """Return (kind of run, point); in S3, where a dead process holds its lock for a while, once through each step.

    At each change every point is met with SQLite on a folder, and each eighth with the others.
    """
    cases = [(kind, point) for kind in ("sqlite", "redis") for point in points]
    cases += [("s3", point) for point in points if point.call not in _OF_THE_LEDGER_ALONE]
    return at_night_unless(
        lambda case: case[0] == "sqlite" or points.index(case[1]) % 8 == 1, cases
    )


def name_of(part: str | Point) -> str:
    """Return how a test is called."""
    return part.text if isinstance(part, Point) else part


LOST_ANSWERS = tuple(
    Point(UNANSWERED, call, num_commits)
    for call, num_commits in (
        ("claim", 1),
        ("commit", 1),
        ("elect_publisher", 2),
        ("unpublished", 2),
        ("check_names", 2),
        ("mark_published", 2),
    )
)


class Run:
    """One dataset, its command, and what its ledger has answered.

    Args:
        folder: for the corpus and what is noted.
        location: of the dataset.
        ledger: as the command takes it.
        lose_ledger: removes it.
    """

    def __init__(
        self, folder: Path, location: str, ledger: str, lose_ledger: Callable[[], object]
    ) -> None:
        self.location = location
        self.lose_ledger = lose_ledger
        self._fs = open_filesystem(location)
        self._notes = folder / "commits"
        self._notes.touch()
        corpus = write_kernels(folder / "kernels", KERNELS)
        slow = [{"kernel": "*", "action": "slow", "seconds": 0.005}]
        device = replay_file(folder / "r.json", behaviours=slow)
        self._command = ["llmperf", "collect", "--corpus", str(corpus), "--out", location]
        self._command += ["--device", device, "--ledger", ledger, *COMMIT_AT_ONCE]

    def start(self, point: Point | None, **variables: str) -> subprocess.Popen[str]:
        """Start the command, which dies at ``point``."""
        text = point.text if point else NEVER
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.dying_at_point", text, *self._command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, COMMITS_VARIABLE: str(self._notes), **variables},
        )

    def recorded(self) -> list[str]:
        """Return the names of the shards that the ledger has bound tasks to."""
        return self._notes.read_text("utf-8").splitlines()

    def recorded_readings(self) -> dict[str, tuple[float, ...] | None]:
        """Return (sample id -> readings) of them, published or not."""
        found: dict[str, tuple[float, ...] | None] = {}
        for name in self.recorded():
            if name.startswith("samples/"):
                found |= readings_of(decode(self._fs.read_bytes(name), name)[0])
        return found

    def read_while(self, process: subprocess.Popen[str]) -> dict[str, tuple[float, ...] | None]:
        """Read the dataset as others do until a process ends: whole tasks only, and what was there stays."""
        seen: dict[str, tuple[float, ...] | None] = {}
        try:
            while process.poll() is None:
                now = committed(self.location)
                assert len(now) % SAMPLES_A_KERNEL == 0
                assert now.items() >= seen.items()
                seen = now
                time.sleep(0.1)
        finally:
            process.kill()
        return seen

    def assert_readable(self) -> None:
        """After a fault: what is listed is sound; what no manifest lists lies there unread."""
        problems = verify(self.location).problems
        assert [one for one in problems if one.kind is not ProblemKind.ORPHAN] == []

    def assert_whole(self, before: dict[str, tuple[float, ...] | None]) -> None:
        """At the end: every sample once, and those of ``before`` in the shards that the ledger had recorded."""
        report = verify(self.location)
        assert not report.problems
        assert (report.counts.ok, report.counts.tasks) == (
            len(KERNELS) * SAMPLES_A_KERNEL,
            len(KERNELS),
        )
        after = committed(self.location)
        assert len(after) == len(KERNELS) * SAMPLES_A_KERNEL
        assert after.items() >= before.items(), "what was committed stays as it was"
        manifest = latest_manifest(self._fs)
        assert manifest is not None
        assert manifest.shard_names >= set(self.recorded()), "nothing committed is done again"

    def die(self, point: Point) -> None:
        """Run into SIGKILL at a point; what others see then is sound, and all of it committed."""
        dying = self.start(point)
        seen = self.read_while(dying)
        _, told = dying.communicate()
        assert dying.returncode == -signal.SIGKILL, f"it did not come to {point.text}: {told}"
        assert self.recorded_readings().items() >= seen.items()
        self.assert_readable()

    def go_on(self) -> None:
        """Run the same command to its end, and compare."""
        before = self.recorded_readings()
        process = self.start(None)
        self.read_while(process)
        _, told = process.communicate()
        assert process.returncode == 0, told
        self.assert_whole(before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def moto_server() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    data = tmp_path / "data"
    if request.param == "sqlite":
        return Run(tmp_path, str(data), "sqlite", lambda: shutil.rmtree(data / "ledger"))
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("server")
        return Run(tmp_path, str(data), server.url, server.flush)
    moto_server: S3Server = request.getfixturevalue("moto_server")
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    location = new_prefix(moto_server.endpoint)
    return Run(tmp_path, location, "sqlite", lambda: shutil.rmtree(state))


@pytest.mark.parametrize(("run", "point"), at_each(POINTS), indirect=["run"], ids=name_of)
def test_a_collector_dies(run: Run, point: Point) -> None:
    run.die(point)
    assert len(run.recorded_readings()) >= point.num_commits * SAMPLES_A_KERNEL
    run.go_on()


@pytest.mark.parametrize(("run", "point"), at_each(OF_A_REBUILD), indirect=["run"], ids=name_of)
def test_the_ledger_is_lost_and_its_rebuild_dies(run: Run, point: Point) -> None:
    """What was committed and not yet published is known by its shards alone."""
    run.die(Point(AFTER, "commit", 2))
    run.lose_ledger()
    run.die(point)
    run.go_on()


@pytest.mark.parametrize(("run", "point"), at_each(OF_A_SWEEP), indirect=["run"], ids=name_of)
def test_a_sweep_dies(run: Run, point: Point) -> None:
    """It removes the pair of shards that a dead collector had written and not committed."""
    run.die(Point(BEFORE, "commit", 1))
    run.die(point)
    run.go_on()


@pytest.mark.parametrize("point", every(5, OF_A_SERVER), ids=name_of)
def test_a_redis_server_dies(tmp_path: Path, point: Point) -> None:
    """With all it knew: the collector goes on, with another life of the server and the next epoch."""
    server = RedisServer(tmp_path / "redis")
    run = Run(tmp_path, str(tmp_path / "data"), server.url, server.flush)
    going_on = run.start(point, **{VICTIM_VARIABLE: str(server.pid)})
    try:
        assert server.await_end(lambda: going_on.poll() is not None), f"not at {point.text}"
        before = run.recorded_readings()
        run.assert_readable()
        server.start()
        seen = run.read_while(going_on)
        _, told = going_on.communicate()
    finally:
        going_on.kill()
        server.kill()
    assert going_on.returncode == 0, told
    assert "asking again" in told or "the ledger is lost" in told
    run.assert_whole(before | seen)


@pytest.mark.parametrize("point", LOST_ANSWERS, ids=name_of)
def test_the_answer_of_a_redis_server_is_lost(
    tmp_path: Path, server: RedisServer, point: Point
) -> None:
    """What was asked has happened, and is asked again."""
    run = Run(tmp_path, str(tmp_path / "data"), server.url, server.flush)
    going_on = run.start(point)
    seen = run.read_while(going_on)
    _, told = going_on.communicate()
    assert going_on.returncode == 0, told
    assert "the answer is lost; asking again" in told
    run.assert_whole(seen)
