"""A short seed of the chaos run; ``make chaos`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import CHAOS_OPTIONS
from tests.chaos.kills import run_chaos
from tests.chaos.storm import OPTIONS, differences, quiet_run, run_storm
from tests.support.collecting import Collect, replay_file, write_kernels
from tests.support.sampling import NIGHTLY, every


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("num_kills", "num_kernels"), [(3, 24), pytest.param(6, 40, marks=NIGHTLY)]
)
def test_nothing_committed_is_lost_doubled_or_changed_by_sigkill(
    tmp_path: Path, num_kills: int, num_kernels: int
) -> None:
    slow = [{"kernel": "*", "action": "slow", "seconds": 0.005}]
    command = Collect(
        write_kernels(tmp_path / "kernels", [f"k{index:03d}" for index in range(num_kernels)]),
        tmp_path / "data",
        replay_file(tmp_path / "replay.json", behaviours=slow),
        CHAOS_OPTIONS,
    )
    report = run_chaos(command, num_kills=num_kills, every_shards=2, seed=1)
    assert not report.problems
    assert report.kills.total() == num_kills
    assert (report.tasks, report.samples) == (num_kernels, 6 * num_kernels)


@pytest.mark.timeout(120)
@pytest.mark.nightly
def test_a_row_that_differs_from_a_quiet_runs_is_seen(tmp_path: Path) -> None:
    write_kernels(tmp_path / "kernels", ["k0", "k1"])
    assert quiet_run(tmp_path).run(timeout_s=60).returncode == 0
    behaviours = [{"kernel": "k1", "action": "launch_error"}]
    device = replay_file(tmp_path / "failing.json", behaviours=behaviours)
    other = Collect(tmp_path / "kernels", tmp_path / "data", device, OPTIONS[:4])
    assert other.run(timeout_s=60).returncode == 0
    assert differences(tmp_path / "quiet", tmp_path / "quiet") == []
    (told,) = differences(tmp_path / "quiet", tmp_path / "data")
    assert "{'samples launch_error': 3} in place of {'samples ok': 3}" in told


@pytest.mark.timeout(900)
@pytest.mark.parametrize("aof", every(2, [True, False]))
def test_a_storm_on_a_cluster(tmp_path: Path, aof: bool) -> None:
    report, data = run_storm(tmp_path, num_faults=10, num_kernels=120, seed=1, aof=aof)
    assert not report.problems
    assert report.kills.total() == 10
    assert (report.tasks, report.samples) == (120, 360)
    assert quiet_run(tmp_path).run(timeout_s=300).returncode == 0
    assert differences(tmp_path / "quiet", data) == []
