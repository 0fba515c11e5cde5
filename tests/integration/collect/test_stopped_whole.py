"""A collector that is stopped with all its children and continued later has no false failures."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.collecting import (
    Collect,
    descendants,
    events,
    replay_file,
    wait_until,
    write_kernels,
)

LIMIT_S = 4.0
STOPPED_S = 6.0
NUM_KERNELS = 3
OPTIONS = (
    "--samples-per-kernel", "3",
    "--set", "timing.spin_up_ms=0",
    "--set", f"limits.build_timeout_s={LIMIT_S}",
    "--set", f"limits.config_timeout_s={LIMIT_S}",
    "--set", f"limits.task_timeout_s={2.5 * LIMIT_S}",
)  # fmt: skip


def stop_whole(pid: int, seconds: float) -> None:
    """Stop a process and its descendants, as ``docker pause`` does, and continue them."""
    os.kill(pid, signal.SIGSTOP)  # first, so that it starts no more children
    below = descendants(pid)
    for one in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.5)  # the system may let the children run later than their parent
    for one in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "num_stops"),
    [
        ({"action": "slow_compile", "seconds": 2.0}, 2),
        ({"action": "slow", "seconds": 0.1}, 2),
    ],
    ids=["build", "launch"],
)
def test_a_stop_of_the_whole_collector_fails_nothing(
    tmp_path: Path, behaviour: dict[str, Any], num_stops: int
) -> None:
    names = [f"k{n}" for n in range(NUM_KERNELS)]
    corpus = write_kernels(tmp_path / "kernels", names)
    device = replay_file(tmp_path / "r.json", behaviours=[{"kernel": "*", **behaviour}])
    data = tmp_path / "data"
    process = Collect(corpus, data, device, OPTIONS).start()
    wait_until(lambda: any(one["event"] == "claimed" for one in events(data)))
    for _ in range(num_stops):
        time.sleep(0.4)
        assert process.poll() is None, "it has ended before it could be stopped"
        stop_whole(process.pid, STOPPED_S)
    told = "".join(process.communicate(timeout=100))
    assert process.returncode == 0, told
    assert f"= ok {3 * NUM_KERNELS} + failed 0 + pending 0" in told, told
