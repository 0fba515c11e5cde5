"""Collectors that share a Redis ledger: real processes, a real server, which dies amid the run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cluster.ledger.redis_rights import RIGHTS
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.epochs import latest_epoch
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import (
    Collect,
    events,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf
from tests.support.servers.redis_server import RedisServer

NUM_KERNELS, SAMPLES = 14, 6
OPTIONS = (
    "--samples-per-kernel", str(SAMPLES),
    "--set", "timing.spin_up_ms=0",
    "--set", "ledger.claim_ahead=2",
    "--set", "store.commit_interval_s=0.1",
    "--set", "store.publish_interval_s=0.1",
)  # fmt: skip


def assert_whole(out: Path, samples: int = NUM_KERNELS * SAMPLES) -> None:
    """Every sample is there once, and the command itself finds nothing wrong."""
    done = llmperf("dataset", "verify", out)
    assert done.code == 0, done.out + done.stderr
    ids = open_dataset(out).samples(["sample_id"])["sample_id"].to_pylist()
    assert len(ids) == len(set(ids)) == samples


@pytest.mark.parametrize(
    "aof", [pytest.param(one, marks=pytest.mark.slow) for one in (False, True)]
)
def test_a_run_survives_its_server(tmp_path: Path, aof: bool) -> None:
    server = RedisServer(tmp_path / "redis", aof=aof)
    corpus = write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(NUM_KERNELS)])
    slow = [{"kernel": f"k{n}", "action": "slow", "seconds": 0.02} for n in range(NUM_KERNELS)]
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    wanted = Collect(corpus, tmp_path / "data", device, (*OPTIONS, "--ledger", server.url))
    running = [wanted.start(), wanted.start()]
    wait_until(lambda: any((tmp_path / "data" / "samples").glob("*.parquet")), timeout_s=60)
    server.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        running[0].wait(timeout=2)
    server.start()
    for process in running:
        _, told = process.communicate(timeout=100)
        assert process.returncode == 0, told
        assert "asking again" in told
    server.kill()
    assert_whole(tmp_path / "data")


@pytest.mark.slow
def test_a_server_that_stays_away_ends_the_run_after_ever_longer_waits(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    corpus = write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(NUM_KERNELS)])
    slow = [{"kernel": f"k{n}", "action": "slow", "seconds": 0.02} for n in range(NUM_KERNELS)]
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    options = (*OPTIONS, "--ledger", server.url, "--set", "ledger.away_limit_s=3")
    process = Collect(corpus, tmp_path / "data", device, options).start()
    wait_until(lambda: any((tmp_path / "data" / "samples").glob("*.parquet")), timeout_s=60)
    server.kill()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 3, told
    assert all(f"asking again in {wait_s} s" in told for wait_s in ("0.5", "1", "2"))
    assert "Traceback" not in told


def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0"])
    device = replay_file(tmp_path / "r.json")
    options = (*OPTIONS, "--ledger", "redis://127.0.0.1:1/0")
    done = Collect(corpus, tmp_path / "data", device, options).run()
    assert done.returncode == 3
    assert "the Redis server cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_survives_what_its_server_refuses(tmp_path: Path) -> None:
    """Full, a replica, a user with too few rights, half a commit among that: each is waited for, and then all is there once."""
    server = RedisServer(tmp_path / "redis")
    corpus = write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(NUM_KERNELS)])
    slow = [{"kernel": f"k{n}", "action": "slow", "seconds": 0.02} for n in range(NUM_KERNELS)]
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    out = tmp_path / "data"
    with server.client() as admin:
        admin.execute_command(f"ACL SETUSER llmperf on >PASSWORD {RIGHTS}")
        url = f"redis://llmperf:PASSWORD@127.0.0.1:{server.port}/0"
        process = Collect(corpus, out, device, (*OPTIONS, "--ledger", url)).start()
        wait_until(lambda: any((out / "samples").glob("*.parquet")), timeout_s=60)
        for trouble, relief, word in (
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY"),
            ("ACL SETUSER llmperf -evalsha", "ACL SETUSER llmperf +evalsha", "evalsha"),
            ("ACL SETUSER llmperf -setbit", "ACL SETUSER llmperf +setbit", "The user executing"),
        ):
            admin.execute_command(trouble)
            wait_until(lambda word=word: _is_waited_for(out, word), timeout_s=60)
            assert process.poll() is None
            admin.execute_command(relief)
        _, told = process.communicate(timeout=100)
    server.kill()
    assert process.returncode == 0, told
    assert "Traceback" not in told
    assert latest_epoch(PosixFilesystem(out)) == 1, "no commit was half done, so the ledger stayed"
    assert_whole(out)


def _is_waited_for(out: Path, word: str) -> bool:
    lines = [str(event) for event in events(out)]
    return any(word in line and "asking again" in line for line in lines)


def test_a_user_with_too_few_rights_is_told_at_once(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    corpus = write_kernels(tmp_path / "kernels", ["k0"])
    device = replay_file(tmp_path / "r.json")
    with server.client() as admin:
        admin.execute_command(f"ACL SETUSER llmperf on >PASSWORD {RIGHTS} -setbit")
    for sign_in, why in (("llmperf:PASSWORD", "setbit"), ("llmperf:WRONG", "NOAUTH")):
        options = (*OPTIONS, "--ledger", f"redis://{sign_in}@127.0.0.1:{server.port}/0")
        done = Collect(corpus, tmp_path / "data", device, options).run()
        assert done.returncode == 3
        assert f"the Redis server refuses us: 127.0.0.1:{server.port}: " in done.stderr
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    server.kill()
