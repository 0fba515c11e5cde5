"""``ray job submit -- llmperf collect --cluster`` as the README says it, on two nodes with two GPUs each (that only Ray believes in)."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient  # noqa: TID251

from llmperf_common.store.tables.reader import open_dataset
from tests.chaos.kills import committed
from tests.support.collecting import KERNELS, Collect, events, run_llmperf, wait_until
from tests.support.servers.ray_cluster import free_port, nodes_started
from tests.support.servers.redis_server import RedisServer

README = Path(__file__).resolve().parents[3] / "README.md"
(SAID,) = re.findall(r"^\$ (ray job submit .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
SUBMIT, COLLECT = (shlex.split(part) for part in SAID.split(" -- "))
"""The words of the README's command, before and after Ray's ``--``."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STRATEGIES = "memory_analysis,decoupled,simple"
OPTIONS = (
    "--strategy", STRATEGIES,
    "--samples-per-kernel", "6",
    "--seed", "3",
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.max_readings=5",
    "--set", "ledger.lease_ttl_s=5",
    "--set", "ledger.claim_ahead=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    port = free_port()
    with nodes_started({"num_gpus": 2}, {"num_gpus": 2}, dashboard_port=port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"), aof=True)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a corpus of the first kernels of ours."""
    made = tmp_path_factory.mktemp("work")
    (made / "kernels").mkdir()
    for source in sorted(KERNELS.glob("*.cl"))[:8]:
        (made / "kernels" / source.name).write_bytes(source.read_bytes())
    return made


def submit(dashboard: str, folder: Path, *arguments: object, wait: bool = True) -> str:
    """Submit from ``folder`` as the README says, but for the command after ``llmperf``; returns the job's id.

    Ray names the copy of a working directory by its content and deletes it when the last job that used it has ended. A
    submission that finds the copy of a job just ended does not upload it again, and its actors fail with
    ``RuntimeEnvSetupError`` when the copy then goes. So the content of the folder differs for each submission.

    A dashboard that has just started may refuse a job, in several words: a job that it does not list is submitted again.
    """
    name = f"job-{time.monotonic_ns()}"
    (folder / "submission.txt").write_text(name, encoding="utf-8")
    bin_folder = Path(sys.executable).parent
    options = [word for word in SUBMIT[1:] if word != "--no-wait" or not wait]
    command = [
        str(bin_folder / SUBMIT[0]), *options, "--submission-id", name,
        "--", str(bin_folder / COLLECT[0]), *map(str, arguments),
    ]  # fmt: skip
    deadline_s = time.monotonic() + 120
    while True:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, cwd=folder,
            env={**os.environ, "RAY_ADDRESS": dashboard},
        )  # fmt: skip
        with contextlib.suppress(ConnectionError, RuntimeError):  # the dashboard is not up yet
            if any(j.submission_id == name for j in JobSubmissionClient(dashboard).list_jobs()):
                return name
        assert time.monotonic() < deadline_s, done.stdout + done.stderr
        time.sleep(2)


def wait_for_rows(client: JobSubmissionClient, name: str, data: Path, timeout_s: float) -> None:
    """Wait until the running job ``name`` has committed rows to ``data``; a job that ends or is late is shown whole."""
    deadline_s = time.monotonic() + timeout_s
    while not committed(data):
        job = client.get_job_info(name)
        is_over = job.status.is_terminal() or time.monotonic() > deadline_s
        if is_over and not committed(data):
            pytest.fail(
                f"{name} has committed nothing: {job.status} {job.message}\n{client.get_job_logs(name)}"
            )
        time.sleep(0.1)


def exit_code(dashboard: str, name: str) -> int | None:
    """Return ours, of a finished job."""
    (job,) = (j for j in JobSubmissionClient(dashboard).list_jobs() if j.submission_id == name)
    return job.driver_exit_code


def test_stopped_resubmitted_and_finished(
    dashboard: str, server: RedisServer, folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    ledger = tmp_path / "ledger"
    ledger.touch(mode=0o600)
    ledger.write_text(server.url, encoding="utf-8")
    ours = {
        "/shared/corpus.parquet": "kernels",  # in the working directory, which Ray copies
        "/shared/runs/first": str(data),
        "~/.llmperf-ledger": str(ledger),
    }
    assert ours.keys() <= set(COLLECT), SAID
    command = (*(ours.get(word, word) for word in COLLECT[1:]), "--device", "cpu", *OPTIONS)
    client = JobSubmissionClient(dashboard)
    first = submit(dashboard, folder, *command, wait=False)
    wait_for_rows(client, first, data, timeout_s=240)
    client.stop_job(first)
    wait_until(lambda: client.get_job_status(first).is_terminal(), timeout_s=60)
    before = committed(data)
    assert before
    again = submit(dashboard, folder, *command)
    logs = client.get_job_logs(again)
    assert client.get_job_status(again) is JobStatus.SUCCEEDED, logs
    assert exit_code(dashboard, again) == 0
    assert "done before" in logs, "it goes on, it does not begin anew"
    assert "pending 0" in logs
    assert run_llmperf("dataset", "verify", data).returncode == 0
    rows = open_dataset(data).samples().to_pylist()
    after = committed(data)
    assert after.items() >= before.items(), "committed before the stop, unchanged after it"
    assert len(after) == len(rows)
    slots = {line["worker_id"]: line["seat"] for line in events(data)}
    assert len({slots[row["worker_id"]] for row in rows}) == 4, "rows from every slot"
    assert {name for row in rows for name in row["input_strategies"]} == set(STRATEGIES.split(","))

    alone = Collect(folder / "kernels", tmp_path / "alone", "cpu", OPTIONS).run(timeout_s=400)
    assert alone.returncode == 0, alone.stderr
    single = open_dataset(tmp_path / "alone")
    assert sorted(after) == sorted(single.samples(["sample_id"])["sample_id"].to_pylist())
    assert analyses(data) == analyses(tmp_path / "alone"), "as on a single machine"


def analyses(data: Path) -> dict[str, object]:
    """Return ``analysis[]`` by kernel."""
    rows = open_dataset(data).kernels(["kernel_id", "analysis"]).to_pylist()
    assert Counter(row["kernel_id"] for row in rows).most_common(1)[0][1] == 1
    return {row["kernel_id"]: row["analysis"] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("collect", "--cluster", "--corpus", "nope", "--out", "data"), 3),
        (("collect", "--cluster", "--corpus", "kernels", "--out", "data", "--ledger", "x"), 2),
    ],
)
def test_exit_codes_are_the_jobs(
    dashboard: str, folder: Path, arguments: tuple[str, ...], code: int
) -> None:
    assert exit_code(dashboard, submit(dashboard, folder, *arguments)) == code
