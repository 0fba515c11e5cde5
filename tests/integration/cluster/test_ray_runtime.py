"""What Ray does with our actors: which environment they have, and what becomes of one that it cannot start."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray  # noqa: TID251

from cluster.config import ClusterCollectConfig
from cluster.pool.pool import ActorPool
from cluster.pool.reports import ActorSpec
from cluster.pool.slot_records import SlotState
from cluster.ray.runtime import RayRuntime
from llmperf_common.errors import Exit
from llmperf_common.installation import loaded_installation
from llmperf_common.ray_sessions import joined_ray
from llmperf_common.store.files.s3 import ENDPOINT_VARIABLE
from tests.support.collecting import replay_file, run_llmperf, wait_until, write_kernels
from tests.support.servers.ray_cluster import nodes_started
from tests.support.servers.s3_server import CREDENTIALS, S3Server, new_prefix

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A node with one GPU and with credentials, as `ray start` found them there; it knows of no endpoint."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.delenv(ENDPOINT_VARIABLE, raising=False)
        with nodes_started({"num_gpus": 1, "labels": {"pool": "A"}}) as cluster:
            yield cluster.address


@pytest.fixture
def command(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """``collect --cluster`` on that node; ``--out`` is to be added."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return (
        "collect", "--cluster", "--corpus", str(write_kernels(tmp_path / "kernels", ["k0", "k1"])),
        "--device", replay_file(tmp_path / "r.json"), "--samples-per-kernel", "4",
        "--set", "timing.spin_up_ms=0", "--set", 'cluster.pools=[{labels={pool="A"}}]',
    )  # fmt: skip


@pytest.fixture
def other_job(address: str) -> Iterator[Any]:
    """An actor of another job that has the node's GPU."""
    ray.init(address=address, log_to_driver=False)
    holder: Any = ray.remote(num_gpus=1, num_cpus=0)(Holder).remote()
    ray.get(holder.ready.remote())
    yield holder
    ray.shutdown()


class Holder:
    """Has what it was given."""

    def ready(self) -> bool:
        return True


def test_actors_import_nothing_from_the_drivers_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:  # local, so that Ray sends its code
        def finds(self, name: str) -> bool:
            return importlib.util.find_spec(name) is not None

    (tmp_path / "bait.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with joined_ray(ray, address):
        finder: Any = ray.remote(num_cpus=0)(Finder).remote()
        assert not ray.get(finder.finds.remote("bait"))
        assert ray.get(finder.finds.remote("json"))
    assert Path.cwd() == tmp_path


def test_a_missing_token_is_told(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "absent")
    done = run_llmperf(*command, "--out", tmp_path / "data")
    assert done.returncode == Exit.USAGE, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot join the Ray cluster at RAY_ADDRESS" in done.stderr
    assert "absent" in done.stderr


def test_actors_know_the_drivers_store(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    location = new_prefix(server.endpoint)
    done = run_llmperf(*command, "--out", location)
    assert done.returncode == 0, done.stderr
    assert "planned 8 = ok 8" in done.stderr
    assert run_llmperf("dataset", "verify", location).returncode == 0
    server.close()


def test_a_gpu_that_another_job_has_is_no_silent_wait(
    command: tuple[str, ...], tmp_path: Path, other_job: Any
) -> None:
    del other_job
    done = run_llmperf(*command, "--out", tmp_path / "data", "--set", "cluster.start_timeout_s=6")
    assert done.returncode == 4, done.stderr
    assert "Ray has not started its actor: another job may have its GPU" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stop_takes_a_pending_creation_back(tmp_path: Path, other_job: Any) -> None:
    pool = ActorPool(
        RayRuntime(),
        ClusterCollectConfig().cluster,
        spec_of=lambda slot: ActorSpec(
            slot=slot,
            location=str(tmp_path / "data"),
            ledger="sqlite",
            state_folder=tmp_path / "state",
            config=ClusterCollectConfig(),
            files_sha256=loaded_installation().sha256,
        ),
        device=replay_file(tmp_path / "r.json"),
        say=lambda _text: None,
    )
    for _ in range(10):
        pool.step(time.monotonic())
        time.sleep(0.2)
    assert [record.state for record in pool.slots.values()] == [SlotState.WAITING]
    pool.stop(drop=False)
    assert pool.is_over
    ray.kill(other_job)
    wait_until(lambda: ray.available_resources().get("GPU") == 1.0, timeout_s=60)
    time.sleep(5)
    assert ray.available_resources().get("GPU") == 1.0, "Ray does not start it after all"
