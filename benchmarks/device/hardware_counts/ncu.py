"""Run launches under ``ncu`` and bring the counters of each launch into one CSV.

Owns the names of the counters (NVIDIA, *Nsight Compute, metrics reference*). A process launches
``JOBS_A_PROCESS`` kernels. If it dies, the next process continues after the kernel in which it
died. After ``MOST_DEATHS`` deaths no further process starts.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.collecting.collectors.jobs import Job, read_work

COUNTERS = {
    "fadd": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "fmul": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "dadd": "smsp__sass_thread_inst_executed_op_dadd_pred_on.sum",
    "dmul": "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum",
    "dfma": "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l2_load_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_store_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
}
"""Maps our name of each counter to NVIDIA's name."""
JOBS_A_PROCESS = 24
MOST_DEATHS = 2
_PROCESS_TIMEOUT_S = 180.0


def measure(jobs: Path, out: Path, *, max_time_s: float) -> str:
    """Launch jobs under ``ncu`` and write a row for each launch that was begun.

    A row has ``sample_id``, the GPU's ``device`` name, the counters, and a ``note`` if there are no
    counters. No further process starts after ``max_time_s``. Launches that were not begun have no
    row, for example the other launches of a kernel whose launch ended its process.
    """
    device = _gpu_name()
    end_s = time.monotonic() + max_time_s
    all_jobs = read_work(jobs).jobs
    number = len(all_jobs)
    deaths = rows = first = 0
    with out.open("w", newline="", buffering=1) as stream:
        writer = csv.DictWriter(stream, ["sample_id", "device", *COUNTERS, "note"])
        writer.writeheader()
        while first < number and deaths < MOST_DEATHS and time.monotonic() < end_s:
            found, died = _one_process(jobs, first, end_s - time.monotonic())
            writer.writerows({**one, "device": device} for one in found)
            rows += sum(not one["note"] for one in found)
            deaths += died
            first += _jobs_touched(all_jobs[first:], found) if died else JOBS_A_PROCESS
            print(f"{min(first, number)} of {number} kernels, {rows} launches", file=sys.stderr)
    return f"{out}: {rows} launches with counters, {deaths} processes died"


def _one_process(jobs: Path, first: int, left_s: float) -> tuple[list[dict[str, str]], bool]:
    with tempfile.TemporaryDirectory() as folder:
        progress, log = Path(folder) / "progress.jsonl", Path(folder) / "ncu.csv"
        progress.touch()
        command = [
            "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--cache-control", "all", "--metrics", ",".join(COUNTERS.values()), "--log-file", str(log),
            sys.executable, "-m", "benchmarks.device.hardware_counts.launching", str(jobs), str(progress),
            "--first", str(first), "--number", str(JOBS_A_PROCESS),
        ]  # fmt: skip
        died = _run(command, timeout_s=min(left_s, _PROCESS_TIMEOUT_S)) != 0
        lines = [json.loads(line) for line in progress.read_text().splitlines()]
        text = log.read_text().splitlines() if log.exists() else []
    if died:
        print("\n".join(line for line in text[-5:] if not line.startswith('"')), file=sys.stderr)
        lines += [
            {**line, "stage": "failed", "note": "the process died"}
            for line in lines[-1:]
            if line["stage"] == "begun"
        ]
    return list(matched(lines, counter_rows(text))), died


def _run(command: Sequence[str], *, timeout_s: float) -> int:
    """Run a command and return its exit status; after ``timeout_s`` kill it and its children."""
    # The command's standard output would mix with the lines of the CSV.
    with subprocess.Popen(command, stdout=sys.stderr, start_new_session=True) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def _gpu_name() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split("\n")[0]


def _jobs_touched(jobs: Sequence[Job], rows: Sequence[dict[str, str]]) -> int:
    """Return the number of jobs up to the last job with a row, at least 1.

    The next process continues after these jobs.
    """
    seen = {row["sample_id"] for row in rows}
    touched = [
        place
        for place, job in enumerate(jobs)
        if any(one.sample_id in seen for one in job.launches)
    ]
    return max(touched, default=0) + 1


def counter_rows(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of ``ncu``'s raw page.

    Messages of ``ncu``, its line of units, and launches that CUDA refused are left out.
    """
    table = [line for line in lines if line.startswith('"')]
    rows = list(csv.DictReader(table))
    return [row for row in rows if row["ID"].isdigit() and row["Grid Size"] != "(0, 0, 0)"]


def matched(
    lines: Iterable[dict[str, str]], rows: Iterable[dict[str, str]]
) -> Iterator[dict[str, str]]:
    """Yield a row for each launch, with counters if it was launched, else with a note."""
    waiting = iter(rows)
    for line in lines:
        if line["stage"] == "failed":
            yield {"sample_id": line["sample_id"], "note": line["note"] or "failed"}
        elif line["stage"] == "launched":
            row = next(waiting, None)
            if row is None:
                yield {"sample_id": line["sample_id"], "note": "ncu has no counters"}
                continue
            counters = {ours: row.get(its, "").replace(",", "") for ours, its in COUNTERS.items()}
            yield {"sample_id": line["sample_id"], **counters, "note": ""}
