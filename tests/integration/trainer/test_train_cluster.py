"""``llmperf train --cluster`` on real Ray nodes: one process's losses, whatever dies meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient  # noqa: TID251

from tests.support.collecting import REPOSITORY, kill, llmperf_command, wait_until
from tests.support.factories.training import arguments, environment, moments, write_synthetic
from tests.support.servers.ray_cluster import free_port, nodes_started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 150
SETTINGS = (
    f"optimiser.max_steps={STEPS}",
    "checkpoint.every_steps=5",
    "optimiser.zero_stage=2",
    "optimiser.learning_rate=3e-4",  # at 3e-3 rounding grows to 1e-4 within 150 steps
)
CLUSTER = ("--cluster", "--workers", "2")


@dataclass(frozen=True)
class Ray:
    """A cluster of a head and two nodes, with one CPU each."""

    address: str
    dashboard: str


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[Ray]:
    os.environ["OMP_NUM_THREADS"] = "1"
    port = free_port()
    with nodes_started({}, {}, dashboard_port=port) as cluster:
        yield Ray(cluster.address, f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("cluster") / "data")


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that one process has fitted."""
    run = tmp_path_factory.mktemp("alone") / "run"
    done = started(arguments(data, run, *SETTINGS)).run()
    assert done.returncode == 0, done.stderr
    return run


@dataclass(frozen=True)
class Started:
    """A command that runs."""

    process: subprocess.Popen[str]

    def run(self, timeout_s: float = 200.0) -> subprocess.CompletedProcess[str]:
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        finally:
            self.process.kill()
        return subprocess.CompletedProcess([], self.process.returncode, out, err)


def started(words: list[str], ray_nodes: Ray | None = None) -> Started:
    address = {} if ray_nodes is None else {"RAY_ADDRESS": ray_nodes.address}
    return Started(
        subprocess.Popen(
            llmperf_command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**address),
            cwd=REPOSITORY,
        )
    )


def assert_same_losses(run: Path, reference: Path) -> None:
    ours, theirs = moments(run), moments(reference)
    assert [one["step"] for one in ours] == [one["step"] for one in theirs]
    for key in ("loss", "validation_loss"):
        of_ours = [one[key] for one in ours if one[key] is not None]
        of_theirs = [one[key] for one in theirs if one[key] is not None]
        assert of_ours == pytest.approx(of_theirs, abs=1e-5)


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint."""
    folder = run / "fit" / "checkpoints"
    return max((int(path.name[5:]) for path in folder.glob("step-*")), default=0)


def fitting_processes() -> list[int]:
    """Return the ids of the actors' processes that have loaded torch."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_actor = b"ray::_Process" in (folder / "cmdline").read_bytes()
            if is_actor and "libtorch" in (folder / "maps").read_text():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return found


def test_world_size_2_of_a_ray_job_gives_the_losses_of_one_process(
    ray_nodes: Ray, data: Path, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    name = submit(ray_nodes, [*arguments(data, run, *SETTINGS), *CLUSTER])
    client = JobSubmissionClient(ray_nodes.dashboard)
    wait_until(lambda: client.get_job_status(name).is_terminal(), timeout_s=200)
    logs = client.get_job_logs(name)
    assert client.get_job_status(name) is JobStatus.SUCCEEDED, logs
    assert f"step {STEPS}/{STEPS}: loss" in logs
    assert "| test | regressor |" in logs
    assert_same_losses(run, alone)


def submit(ray_nodes: Ray, words: list[str], *options: str) -> str:
    """Submit a job; return its id."""
    name = f"train-{time.monotonic_ns()}"
    command = [
        str(Path(sys.executable).parent / "ray"), "job", "submit", "--no-wait", "--submission-id", name, *options,
        "--", *llmperf_command(*words),
    ]  # fmt: skip
    deadline_s = time.monotonic() + 120
    while True:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=200, check=False,
            env=environment(RAY_ADDRESS=ray_nodes.dashboard),
        )  # fmt: skip
        if "No available agent" not in done.stdout + done.stderr:
            assert done.returncode == 0, done.stdout + done.stderr
            return name
        assert time.monotonic() < deadline_s, done.stderr
        time.sleep(2)


def test_a_killed_worker_costs_the_steps_since_the_checkpoint(
    ray_nodes: Ray, data: Path, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started([*arguments(data, run, *SETTINGS), *CLUSTER], ray_nodes)
    wait_until(lambda: newest(run) >= 10, timeout_s=120)
    before = newest(run)
    first, second = fitting_processes()
    kill(max(first, second))
    done = process.run()
    assert done.returncode == 0, done.stderr
    assert "all processes are started again from the newest checkpoint (1 of 3" in done.stderr
    (step,) = map(int, re.findall(r"the newest checkpoint is of step (\d+)", done.stderr))
    assert step >= before
    assert_same_losses(run, alone)


@pytest.mark.nightly  # two minutes; test_fit_resume.py kills a fit without Ray
def test_a_killed_driver_costs_the_steps_since_the_checkpoint(
    ray_nodes: Ray, data: Path, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [*arguments(data, run, *SETTINGS), *CLUSTER]
    first = started(words, ray_nodes)
    wait_until(lambda: newest(run) >= 10, timeout_s=120)
    before = newest(run)
    first.process.send_signal(signal.SIGKILL)
    first.run()
    again = started(words, ray_nodes).run()
    assert again.returncode == 0, again.stderr
    (step,) = map(int, re.findall(r"the newest checkpoint is of step (\d+)", again.stderr))
    assert step >= before
    assert_same_losses(run, alone)


def test_a_stopped_job_saves_its_state(ray_nodes: Ray, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = (*SETTINGS, "optimiser.max_steps=9000", "checkpoint.every_steps=1000")
    name = submit(ray_nodes, [*arguments(data, run, *long), *CLUSTER])
    client = JobSubmissionClient(ray_nodes.dashboard)
    wait_until(lambda: (run / "fit" / "fit.jsonl").exists() and len(moments(run)) > 5, timeout_s=90)
    client.stop_job(name)
    wait_until(lambda: client.get_job_status(name).is_terminal(), timeout_s=60)
    logs = client.get_job_logs(name)
    assert "the state is saved" in logs
    assert newest(run) == moments(run)[-1]["step"], "nothing is lost"


def test_ctrl_c_saves_the_state(ray_nodes: Ray, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = (*SETTINGS, "optimiser.max_steps=9000", "checkpoint.every_steps=1000")
    process = started([*arguments(data, run, *long), *CLUSTER], ray_nodes)
    wait_until(lambda: (run / "fit" / "fit.jsonl").exists() and len(moments(run)) > 5, timeout_s=90)
    process.process.send_signal(signal.SIGINT)
    done = process.run(60)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert newest(run) == moments(run)[-1]["step"]


def test_more_workers_than_processors(ray_nodes: Ray, data: Path, tmp_path: Path) -> None:
    words = arguments(data, tmp_path / "run", *SETTINGS, "cluster.start_timeout_s=5")
    done = started([*words, "--cluster", "--workers", "7"], ray_nodes).run(60)
    assert done.returncode == 4, done.stderr
    assert "--workers 7: 7 processes of 1 CPU each could not be placed within 5 s" in done.stderr
    assert re.search(r"the cluster has 3 CPUs on 3 nodes, \d of them free", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("--data", "nothing"), 3, "not seen by all nodes of the training"),
        (("--preset", "log-linear"), 2, "is fitted by one process"),
        (("--set", "packing.lengths=[32,64]", "--set", "prompt.max_tokens=32"), 3, "no launch"),
    ],
)
def test_bad_input_has_its_exit_code(
    ray_nodes: Ray, data: Path, tmp_path: Path, change: tuple[str, ...], code: int, message: str
) -> None:
    words = arguments(data, tmp_path / "run", *SETTINGS)
    if change[0] == "--preset":
        words = ["train", "--data", str(data), "--out", str(tmp_path / "run")]
    done = started([*words, *change, *CLUSTER], ray_nodes).run(90)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "prepared").exists()


def test_a_run_in_the_copied_working_directory_is_refused(
    ray_nodes: Ray, data: Path, tmp_path: Path
) -> None:
    words = arguments(data, Path("run"), *SETTINGS)
    name = submit(ray_nodes, [*words, *CLUSTER], "--working-dir", str(tmp_path))
    client = JobSubmissionClient(ray_nodes.dashboard)
    wait_until(lambda: client.get_job_status(name).is_terminal(), timeout_s=90)
    assert "--out run: the working directory of a Ray job is a copy" in client.get_job_logs(name)
    (job,) = (one for one in client.list_jobs() if one.submission_id == name)
    assert job.driver_exit_code == 2
