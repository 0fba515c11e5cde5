"""``collect`` where the machine, and not the kernel, is why nothing can be built: limits on memory, a compiler that always dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.collecting import (
    Collect,
    llmperf_command,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf
from tests.support.sampling import SLOW
from workers.source.parse_pool import ParserError, parse_sources

FAST = ("--samples-per-kernel", "4", "--set", "timing.spin_up_ms=0")


def statuses(data: Path) -> list[str]:
    tables = [
        pq.read_table(path, columns=["status"]) for path in (data / "samples").glob("*.parquet")
    ]
    return [status for table in tables for status in table.column("status").to_pylist()]


def limited(kib: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command under ``ulimit -v``."""
    command = ["bash", "-c", f'ulimit -v {kib}; exec "$@"', "bash", *llmperf_command(*arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
@pytest.mark.opencl
def test_a_limit_on_memory_fails_no_kernel(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0", "k1"])
    named = ("--corpus", corpus, "--out", tmp_path / "data", "--device", "cpu", *FAST)
    done = limited(4_000_000, "collect", *named)
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "data") == ["ok"] * 8


@pytest.mark.parametrize(
    "kib", [200_000, pytest.param(450_000, marks=SLOW), pytest.param(650_000, marks=SLOW)]
)
@pytest.mark.opencl
def test_a_limit_that_nothing_works_under_is_said_at_the_start(tmp_path: Path, kib: int) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0", "k1"])
    named = ("--corpus", corpus, "--out", tmp_path / "data", "--device", "cpu", *FAST)
    done = limited(kib, "collect", *named)
    # Under the largest one Intel's runtime cannot be opened, and PoCL can, but builds no kernel.
    assert done.returncode in ((3,) if kib < 512 * 1024 else (4, 5)), done.stderr
    assert f"limited to {kib // 1024} MiB here (`ulimit -v`)" in done.stderr
    assert "Traceback" not in done.stderr
    assert statuses(tmp_path / "data") == []


def test_a_parser_that_cannot_work_makes_no_plan(tmp_path: Path) -> None:
    sound = ["kernel void k(global int *x) { x[0] = 1; }"]
    with pytest.raises(ParserError, match=r"does not work here .*status 1"):
        parse_sources(sound, command=(sys.executable, "-c", "raise SystemExit(1)"))


@pytest.mark.parametrize(
    "action",
    [pytest.param(one, marks=SLOW) for one in ("build_error", "crash_compile", "hang_compile")],
)
def test_where_no_kernel_can_be_built_no_row_is_final(tmp_path: Path, action: str) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0", "k1"])
    device = replay_file(tmp_path / "r.json", behaviours=[{"kernel": "*", "action": action}])
    limits = ("--set", "limits.build_timeout_s=1")
    collect = Collect(corpus, tmp_path / "data", device, FAST + limits)
    done = collect.run_here()
    assert done.returncode == 5, done.stderr
    assert "no kernel can be built here: all 2 that were tried have failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert statuses(tmp_path / "data") == []
    assert llmperf("dataset", "verify", tmp_path / "data").code == 0

    replay_file(tmp_path / "r.json", behaviours=[])  # the machine is mended
    again = collect.run_here()
    assert again.returncode == 0, again.stderr
    assert statuses(tmp_path / "data") == ["ok"] * 8


@pytest.mark.slow
def test_a_kernel_that_alone_is_left_gets_its_row_where_others_can_be_built_again(
    tmp_path: Path,
) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["bomb", "good"])
    two = ("--set", "limits.compile_children=2", "--set", "store.commit_interval_s=0")
    device = replay_file(
        tmp_path / "r.json", behaviours=[{"kernel": "bomb", "action": "hang_compile"}]
    )
    collect = Collect(corpus, tmp_path / "data", device, FAST + two)
    process = collect.start()
    wait_until(lambda: bool(statuses(tmp_path / "data")))
    process.kill()
    process.communicate()

    replay_file(tmp_path / "r.json", behaviours=[{"kernel": "bomb", "action": "crash_compile"}])
    done = collect.run_here()
    assert done.returncode == 0, done.stderr
    assert sorted(statuses(tmp_path / "data")) == ["compiler_crash"] + ["ok"] * 4
