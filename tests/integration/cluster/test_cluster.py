"""``collect --cluster`` on real Ray nodes with a real Redis: every sample once, whichever process dies meanwhile."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.run import read_run
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import (
    Collect,
    events,
    kill,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf
from tests.support.servers.ray_cluster import nodes_started
from tests.support.servers.redis_server import RedisServer

NUM_KERNELS, SAMPLES = 24, 6
OPTIONS = (
    "--cluster",
    "--samples-per-kernel", str(SAMPLES),
    "--set", "timing.spin_up_ms=0",
    "--set", "ledger.claim_ahead=2",
    "--set", "ledger.lease_ttl_s=4",
    "--set", "store.commit_interval_s=0.1",
    "--set", "store.publish_interval_s=0.3",
    "--set", "cluster.restart_delay_s=0.1",
)  # fmt: skip

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with nodes_started(
        {"num_gpus": 2, "labels": {"pool": "A"}}, {"num_gpus": 2, "labels": {"pool": "B"}}
    ) as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


def slow_device(path: Path, *, seconds: float = 0.003, **facts: object) -> str:
    """Return a replay device whose launches take ``seconds``."""
    behaviours = [
        {"kernel": f"k{n}", "action": "slow", "seconds": seconds} for n in range(NUM_KERNELS)
    ]
    return replay_file(path, behaviours=behaviours, **facts)


def wanted(tmp_path: Path, address: str, server: RedisServer, *options: str) -> Collect:
    """Return the command of these tests."""
    corpus = write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(NUM_KERNELS)])
    device = slow_device(tmp_path / "r.json")
    everything = (*OPTIONS, "--ledger", server.url, *options)
    return Collect(corpus, tmp_path / "data", device, everything, {"RAY_ADDRESS": address})


def assert_whole(data: Path, samples: int = NUM_KERNELS * SAMPLES) -> None:
    """Every sample is there once, and the command itself finds nothing wrong."""
    done = llmperf("dataset", "verify", data)
    assert done.code == 0, done.out + done.err
    ids = open_dataset(data).samples(["sample_id"])["sample_id"].to_pylist()
    assert len(ids) == len(set(ids)) == samples
    listed = {entry.name for entry in open_dataset(data).manifest.shards}
    there = {str(p.relative_to(data)) for p in data.glob("*/*.parquet") if p.parent.name != "trash"}
    assert there == listed, "orphans are swept: they lie in trash/"


def test_every_gpu_of_two_nodes_collects(tmp_path: Path, address: str, server: RedisServer) -> None:
    done = wanted(tmp_path, address, server).run()
    assert done.returncode == 0, done.stderr
    assert "4 actors (4 replay)" in done.stderr
    assert f"planned {NUM_KERNELS * SAMPLES} = ok {NUM_KERNELS * SAMPLES}" in done.stderr
    assert_whole(tmp_path / "data")
    workers = Counter(
        open_dataset(tmp_path / "data").samples(["worker_id"])["worker_id"].to_pylist()
    )
    assert len(workers) == 4, "rows from every actor"
    told = [line for line in events(tmp_path / "data") if line["event"] == "claimed"]
    assert len({line["actor_id"] for line in told}) == 4
    assert len({line["node_id"] for line in told}) == 2
    assert {str(line["seat"]).rpartition("/")[2] for line in told} == {"gpu0", "gpu1"}


@pytest.mark.slow
def test_a_killed_actor_costs_its_tasks_in_hand_only(
    tmp_path: Path, address: str, server: RedisServer
) -> None:
    data = tmp_path / "data"
    command = wanted(tmp_path, address, server)
    running = Collect(
        command.corpus,
        data,
        slow_device(tmp_path / "slow.json", seconds=0.01),
        command.options,
        command.environment,
    ).start()
    wait_until(lambda: len(list(data.glob("samples/*.parquet"))) >= 2, timeout_s=90)
    before = {
        row["sample_id"]: row["time_ns"]
        for row in open_dataset(data).samples(["sample_id", "time_ns"]).to_pylist()
    }
    victim = next(line for line in events(data) if line["event"] == "finished")["worker_id"]
    kill(int(str(victim).rpartition("/")[2]))
    _, told = running.communicate(timeout=150)
    assert running.returncode == 0, told
    assert "its actor died and is started again" in told
    assert_whole(data)
    rows = open_dataset(data).samples(["sample_id", "time_ns", "task_attempt"]).to_pylist()
    assert {r["sample_id"]: r["time_ns"] for r in rows}.items() >= before.items()
    assert max(row["task_attempt"] for row in rows) == 2


@pytest.mark.slow
def test_a_dead_driver_is_resubmitted(tmp_path: Path, address: str, server: RedisServer) -> None:
    data = tmp_path / "data"
    command = wanted(tmp_path, address, server)
    first = command.start()
    wait_until(lambda: any(data.glob("samples/*.parquet")), timeout_s=90)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    workers = {str(line["worker_id"]) for line in events(data)}
    wait_until(
        lambda: not any(Path(f"/proc/{name.rpartition('/')[2]}").exists() for name in workers)
    )
    again = command.run(timeout_s=150)
    assert again.returncode == 0, again.stderr
    assert_whole(data)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path: Path, address: str, server: RedisServer) -> None:
    data = tmp_path / "data"
    command = wanted(tmp_path, address, server)
    first = command.start()
    wait_until(lambda: any(data.glob("samples/*.parquet")), timeout_s=90)
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 130, told
    assert "run the same command again to resume" in told
    assert llmperf("dataset", "verify", data).code == 0
    again = command.run(timeout_s=150)
    assert again.returncode == 0, again.stderr
    assert "done before" in again.stderr
    assert_whole(data)


@pytest.mark.slow
def test_device_classes_by_label(tmp_path: Path, address: str, server: RedisServer) -> None:
    command = wanted(tmp_path, address, server)
    pools = ", ".join(
        f'{{labels = {{pool = "{label}"}}, device = "{slow_device(tmp_path / f"{label}.json", device={"device_class": name, "name": name})}"}}'
        for label, name in (("A", "fast-gpu"), ("B", "small-gpu"))
    )
    options = (*command.options, "--set", f"cluster.pools=[{pools}]")
    done = Collect(command.corpus, command.out, "auto", options, command.environment).run(
        timeout_s=200
    )
    assert done.returncode == 0, done.stderr
    assert "2 fast-gpu, 2 small-gpu" in done.stderr
    assert_whole(tmp_path / "data", 2 * NUM_KERNELS * SAMPLES)
    run = read_run(PosixFilesystem(tmp_path / "data"))
    assert run is not None
    assert [one.name for one in run.device_classes] == ["fast-gpu", "small-gpu"]
    classes = open_dataset(tmp_path / "data").samples(["device_class"])["device_class"].to_pylist()
    assert Counter(classes) == dict.fromkeys(("fast-gpu", "small-gpu"), NUM_KERNELS * SAMPLES)


def states_of_slots(data: Path) -> list[object]:
    """Return every state that the driver's event log has of a slot, in their order."""
    return [line["state"] for line in events(data) if line["event"] == "seat"]


@pytest.mark.slow
def test_the_only_actor_pauses_while_its_device_is_slow(
    tmp_path: Path, server: RedisServer
) -> None:
    """Before, the run ended with exit code 4 and tasks pending."""
    data = tmp_path / "data"
    corpus = write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(12)])
    # Five readings as the baseline and three for the verdict; the first try after the pause is steady.
    device = slow_device(tmp_path / "r.json", sentinel_factors=[1.0] * 5 + [2.0] * 3)
    options = (
        *OPTIONS,
        "--ledger", server.url,
        "--set", "timing.sentinel_every_tasks=1",
        # The driver reports its slots every 2 s: on a loaded machine, too, one report is seen in time.
        "--set", "cluster.drift_pause_s=10",
    )  # fmt: skip
    with nodes_started({"num_gpus": 1}) as cluster:
        environment = {"RAY_ADDRESS": cluster.address}
        running = Collect(corpus, data, device, options, environment).start()
        shown: list[dict[str, Any]] = []

        def is_shown_as_paused() -> bool:
            done = llmperf("status", data, "--ledger", server.url, "--json")
            if done.code == 0:
                drivers = json.loads(done.out)["drivers"]
                shown[:] = [slot for one in drivers for slot in one.get("not_collecting", [])]
            return any(slot["state"] == "paused" for slot in shown)

        wait_until(lambda: "paused" in states_of_slots(data), timeout_s=90)
        wait_until(is_shown_as_paused, timeout_s=30)
        _, told = running.communicate(timeout=120)
    assert running.returncode == 0, told
    assert ": paused: its sentinel kernel takes 100% longer than at first; no other slot" in told
    assert "longer than at first" in shown[0]["why"]
    lines = events(data)
    states = states_of_slots(data)
    assert states[-1] == "done"
    assert all(line["why"] for line in lines if line.get("state") == "paused")
    logged = [str(line["message"]) for line in lines if line["event"] == "log"]
    assert any("drained: its sentinel kernel takes 100% longer" in text for text in logged)
    assert_whole(data, 12 * SAMPLES)


@pytest.mark.nightly
def test_where_no_node_can_build_a_kernel_no_row_is_final(
    tmp_path: Path, address: str, server: RedisServer
) -> None:
    collect = wanted(tmp_path, address, server)
    failing = [{"kernel": "*", "action": "build_error"}]
    replay_file(tmp_path / "r.json", behaviours=failing)
    done = collect.run()
    assert done.returncode == 5, done.stderr
    assert "no kernel can be built here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "data" / "samples").glob("*"))

    slow_device(tmp_path / "r.json")  # the nodes are mended
    again = collect.run()
    assert again.returncode == 0, again.stderr
    assert_whole(tmp_path / "data")


@pytest.mark.slow
def test_a_label_that_no_node_has_is_told(
    tmp_path: Path, address: str, server: RedisServer
) -> None:
    pools = '[{labels = {pool = "Z"}}]'
    began_s = time.monotonic()
    done = wanted(
        tmp_path, address, server,
        "--set", f"cluster.pools={pools}", "--set", "cluster.start_timeout_s=3",
    ).run()  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "no node has the labels pool=Z (existing labels: pool=A, pool=B" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began_s < 60
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_class_that_no_node_has_is_told(
    tmp_path: Path, address: str, server: RedisServer
) -> None:
    done = wanted(
        tmp_path, address, server,
        "--set", 'cluster.device_classes=["replay","a100"]', "--set", "cluster.start_timeout_s=15",
    ).run()  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "waiting for device class a100 (found: replay)" in done.stderr
    assert "asks for a100, but the cluster has replay" in done.stderr
    assert not (tmp_path / "data" / "run.json").exists(), "nothing is planned"
