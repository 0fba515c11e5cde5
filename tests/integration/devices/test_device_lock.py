"""The device's lock between processes: one at a time, and free when its holder dies."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.measure.device_lock import await_end, device_lock

HOLD = """
import sys, time
from pathlib import Path
from workers.measure.device_lock import device_lock
with device_lock(Path(sys.argv[1])) as handover:
    print(handover.idle_s, handover.dead_pid, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def holder(path: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(path), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "None None\n"
        yield process


def test_without_a_file_nobody_waits() -> None:
    with device_lock(None) as handover:
        assert (handover.idle_s, handover.dead_pid) == (None, None)


def test_the_next_waits_for_the_end_and_knows_how_long_ago_it_was(tmp_path: Path) -> None:
    with holder(tmp_path / "device.lock", 2.0) as process:
        start_s = time.monotonic()
        with device_lock(tmp_path / "device.lock") as handover:
            waited_s = time.monotonic() - start_s
            assert waited_s > 0.5
            assert handover.idle_s is not None
            assert 0 <= handover.idle_s < waited_s, "since the holder's end, not since its start"
            assert handover.dead_pid is None
        assert process.wait(10) == 0
    time.sleep(0.2)
    with device_lock(tmp_path / "device.lock") as handover:
        assert handover.idle_s is not None
        assert handover.idle_s >= 0.2


def test_a_dead_holders_lock_is_free_and_known(tmp_path: Path) -> None:
    with holder(tmp_path / "device.lock", 60.0) as process:
        process.kill()
        start_s = time.monotonic()
        with device_lock(tmp_path / "device.lock") as handover:  # not reaped yet: it is a zombie
            assert handover.dead_pid == process.pid
            assert handover.idle_s is None
            await_end(handover.dead_pid)
        assert time.monotonic() - start_s < 5
    with device_lock(tmp_path / "device.lock") as handover:
        assert handover.dead_pid is None
