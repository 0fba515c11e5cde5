"""``--cluster`` without a cluster: what the Ray that it starts opens to others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmperf_common.extras import require
from llmperf_common.own_ray import own_ray
from tests.integration.collecting import Collect, replay_file, write_kernels
from tests.listening import family_of, listening

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
STRANGER = "import ray, sys; ray.init(address=sys.argv[1]); print('inside')"


def test_a_local_cluster_is_closed(tmp_path: Path) -> None:
    """Before, its servers listened on all interfaces, and ``disabled`` was taken from the shell."""
    names = [f"k{n}" for n in range(6)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.05} for name in names]
    options = ("--cluster", "--samples-per-kernel", "4", "--set", "timing.spin_up_ms=0")
    environment = {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "", "HOME": str(tmp_path)}
    running = Collect(
        write_kernels(tmp_path / "kernels", names),
        tmp_path / "data",
        replay_file(tmp_path / "r.json", behaviours=slow),
        options,
        environment,
    ).start()
    seen: dict[str, set[str]] = {}
    modes: dict[str, str | None] = {}
    while running.poll() is None:
        for address, programs in listening(running.pid).items():
            seen.setdefault(address, set()).update(programs)
        for process in family_of(running.pid):
            with contextlib.suppress(psutil.Error):
                if process.name() in ("gcs_server", "raylet"):
                    modes[process.name()] = process.environ().get("RAY_AUTH_MODE")
        time.sleep(0.5)
    _, told = running.communicate()
    assert running.returncode == 0, told
    assert {"gcs_server", "raylet"} <= set().union(*seen.values()), "Ray's servers were seen"
    assert set(seen) <= LOOPBACK, seen
    assert modes == {"gcs_server": "token", "raylet": "token"}
    assert not (tmp_path / ".ray").exists(), "Ray's own token file is readable to others"


@pytest.fixture
def own_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of ours."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    ray = require("ray", "cluster")
    with own_ray(ray, include_dashboard=False, num_cpus=1):
        yield ray.get_runtime_context().gcs_address
    assert os.environ["RAY_AUTH_MODE"] == "disabled", "as it was"
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "says",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}],
)
def test_a_stranger_of_this_host_is_refused(own_address: str, says: dict[str, str]) -> None:
    theirs = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, own_address],
        capture_output=True, text=True, timeout=100, check=False,
        env={**theirs, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **says},
    )  # fmt: skip
    assert done.returncode != 0
    assert "inside" not in done.stdout
