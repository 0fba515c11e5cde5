"""What a bad kernel costs a run: a compiler's death, a hang, too little memory, a device fault.

``python -m benchmarks.device.fault_costs --device cuda:0 --out FOLDER [--kinds
crash,hang,memory,fault]``

For each kind, ``llmperf collect`` collects a few good kernels and one bad kernel. Two costs are
reported: the time of the bad kernel from its claim to its end, and the longest time between two
turns of good kernels on the device. Every launch is bounded (the hang is a loop of about a minute,
which is killed long before its end), and each kind is run once.

* ``crash``: the compile children are killed (SIGSEGV) while they build the bad kernel, twice.
* ``hang``: a loop far longer than ``limits.config_timeout_s``.
* ``memory``: another process takes most of the device's memory, and the bad kernel asks for more
  than is left.
* ``fault``: a store far outside every buffer. On a GPU this is an illegal access, which the system
  log will show.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from llmperf_common.store.tables.reader import open_dataset

KINDS = ("crash", "hang", "memory", "fault")
NUM_GOOD = 6
GOOD = "__kernel void good_{n}(__global const float *a, __global float *b) {{ int i = get_global_id(0); b[i] = a[i] * {n}.5f; }}\n"
BAD = {
    "crash": "__kernel void bad(__global float *a) {\n    float x = a[get_global_id(0)];\n"
    + "".join(f"    x = sin(x * {n}.1f) + pow(fabs(x), {n}.3f);\n" for n in range(1, 1500))
    + "    a[get_global_id(0)] = x;\n}\n",
    "hang": "__kernel void bad(__global float *a) {\n    float x = a[get_global_id(0)];\n"
    "    for (ulong t = 0; t < 20000000000UL; ++t)\n        x = x * 0.999f + 0.001f;\n"
    "    a[get_global_id(0)] = x;\n}\n",
    "memory": "__kernel void bad(__global const float *a, __global float *b) {\n"
    "    ulong i = get_global_id(0);\n    b[i * 256] = a[i * 256];\n}\n",
    "fault": "__kernel void bad(__global float *a, ulong far) {\n"
    "    a[get_global_id(0)] = 1.0f;\n    *(__global float *)((ulong)a + (1UL << 44)) = 2.0f;\n}\n",
}
HOG = """
import sys, time
import numpy as np, pyopencl as cl
from workers.discovery.find import choose
from workers.discovery.opening import open_session
session = open_session(choose(sys.argv[1]))
queue, held, left = session._queue, [], int(session.device.global_memory_bytes * float(sys.argv[2]))
while left > 0:
    size = min(left, 2**31)
    held.append(queue.allocate(size)); queue.fill_bytes(held[-1], 1, num_bytes=size); queue.queue.finish()
    left -= size
print("full", flush=True)
time.sleep(600)
"""


def write_kernels(folder: Path, kind: str) -> None:
    """Write the good kernels and the bad kernel, which is in the middle by name."""
    folder.mkdir(parents=True)
    for number in range(NUM_GOOD):
        (folder / f"{'a' if number < NUM_GOOD // 2 else 'z'}_{number}.cl").write_text(
            GOOD.format(n=number)
        )
    (folder / "m_bad.cl").write_text(BAD[kind])


def collect(
    folder: Path, device: str, settings: Sequence[str], *, strategy: str
) -> subprocess.Popen[str]:
    """Start ``llmperf collect`` on ``folder / "kernels"``."""
    entry = "from llmperf.cli.main import run; run()"
    command = [
        "collect",
        "--corpus",
        str(folder / "kernels"),
        "--out",
        str(folder / "data"),
        "--device",
        device,
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-c", entry, *command, "--samples-per-kernel", "12", "--strategy", strategy, *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def kill_compilers(parent: int, stop: threading.Event) -> None:
    """Kill each compile child below ``parent`` that was busy during half a second."""
    while not stop.is_set():
        for child in psutil.Process(parent).children(recursive=True):
            try:
                if "workers.execution.compile_child" not in child.cmdline():
                    continue
                before_s = child.cpu_times().user
                time.sleep(0.5)
                if child.cpu_times().user - before_s > 0.45:
                    os.kill(child.pid, signal.SIGSEGV)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        time.sleep(0.02)


@contextmanager
def hog(device: str, share: float) -> Iterator[None]:
    """Hold a share of the device's memory in another process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOG, device, str(share)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "full\n", "the memory could not be taken"
            yield
        finally:
            process.kill()


def run_kind(kind: str, folder: Path, device: str) -> dict[str, Any]:
    """Collect with one bad kernel; return what it cost."""
    write_kernels(folder / "kernels", kind)
    # Without the access check on the CPU, the bad kernel is launched, too.
    settings = ["limits.check_reach=off"]
    settings += {
        "memory": ["limits.allow_busy_gpu=true", "plan.max_launch_bytes=137438953472", "plan.idle_share=0", "plan.under_share=0"],
        "crash": ["limits.kernel_resources=off"],
    }.get(kind, [])  # fmt: skip
    # Only the kind "memory" needs the analysis. The kernel that hangs would also hang in it.
    strategy = "memory_analysis" if kind == "memory" else "simple"
    process = collect(folder, device, settings, strategy=strategy)
    stop = threading.Event()
    killer = threading.Thread(target=kill_compilers, args=(process.pid, stop), daemon=True)
    if kind == "crash":
        killer.start()
    output, _ = process.communicate(timeout=500)
    stop.set()
    if process.returncode != 0:
        raise RuntimeError(f"{kind}: exit code {process.returncode}: {output[-2000:]}")
    return {"kind": kind, **costs(folder / "data")}


def costs(data: Path) -> dict[str, Any]:
    """Return the codes of good and bad rows, the bad task's time and the longest pause."""
    dataset = open_dataset(data)
    names = {
        row["task_id"]: row["name"]
        for t in dataset.iter_table("kernels", ["task_id", "name"])
        for row in t.to_pylist()
    }
    codes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for table in dataset.iter_samples(["task_id", "status"]):
        for row in table.to_pylist():
            codes[names[row["task_id"]] == "bad"][row["status"]] += 1
    events = [
        json.loads(line)
        for path in (data / "events").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    at = {(one["event"], names.get(one.get("task_id", ""), "")): one["at_s"] for one in events}
    turns = sorted(
        tuple(turn) for one in events if one["event"] == "timed" and names[one["task_id"]] != "bad"
        for turn in one["turns"]
    )  # fmt: skip
    pause_s = max((b[0] - a[1] for a, b in itertools.pairwise(turns)), default=0.0)
    return {
        "good": dict(codes[False]), "bad": dict(codes[True]),
        "claimed_to_finished_s": round(at["finished", "bad"] - at["claimed", "bad"], 2),
        "longest_pause_of_others_s": round(pause_s, 2),
    }  # fmt: skip


def main() -> int:
    """Run the kinds, print and write what they cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="folder for datasets and costs.csv")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument(
        "--memory-share",
        type=float,
        default=0.9,
        help="share of the memory that the other process takes",
    )
    given = parser.parse_args()
    rows = []
    for kind in given.kinds.split(","):
        if kind == "memory":
            with hog(given.device, given.memory_share):
                rows.append(run_kind(kind, given.out / kind, given.device))
        else:
            rows.append(run_kind(kind, given.out / kind, given.device))
        print(json.dumps(rows[-1]), flush=True)
    with (given.out / "costs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
