"""How much of a launch's event time is due to the host, and what that part depends on.

``python -m benchmarks.device.host_share --device cuda:0 [--processes 12] [--rounds 6] [--out
FILE.csv]``

Fresh processes take turns. Each has a context and a kernel of about 8 us on an H200 (longer on
other devices), and times blocks of launches in three modes:

* *alone*: each launch is waited for, on an idle device, on the processor that the scheduler chose;
* *bound*: the same, with all processes bound to one processor, which is therefore always busy;
* *behind*: each launch is enqueued behind a kernel of forty times the length, so that the host has
  finished before the device begins the launch.

For each block the program writes the medians of the event time and of the enqueue call's wall time,
and the time of a loop in Python. It prints how much blocks and processes differ, and how the event
time correlates with the enqueue call, within blocks and between blocks.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyopencl as cl  # noqa: TID251

from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.discovery.find import NoDevice, choose
from workers.measure.launch_processor import launching_from
from workers.sandbox.processors import for_launches

SOURCE = """
__kernel void spin(__global float *out, int turns) {
    float x = get_global_id(0);
    for (int t = 0; t < turns; ++t) x = fma(x, 1.0001f, 0.5f);
    out[get_global_id(0)] = x;
}
"""
MODES = ("alone", "bound", "behind")
_ITEMS, _LOCAL = 65_536, 256
_TURNS, _LONGER = 2_000, 40
_CPU_ITEMS, _CPU_TURNS = 1_024, 20
_LAUNCHES = 150
_LOOP_TURNS = 20_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of one process: medians in ns, and correlation of event and enqueue time."""

    process: int
    round: int
    mode: str
    event_ns: float
    event_iqr_ns: float
    enqueue_ns: float
    python_loop_ns: float
    correlation: float


class Spinner:
    """A context with the kernel and its longer form."""

    def __init__(self, ref: DeviceRef) -> None:
        device = find_cl_device(ref)
        is_cpu = bool(device.type & cl.device_type.CPU)
        self._items = _CPU_ITEMS if is_cpu else _ITEMS
        context = cl.Context([device])
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(context, device, properties)
        self._out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * _ITEMS)
        program = cl.Program(context, SOURCE).build()
        turns = _CPU_TURNS if is_cpu else _TURNS
        self._kernel = self._with_turns(program, turns)
        self._longer = self._with_turns(program, turns * _LONGER)
        self.times(20, behind=False)

    def _with_turns(self, program: cl.Program, turns: int) -> cl.Kernel:
        kernel = cl.Kernel(program, "spin")
        kernel.set_args(self._out, np.int32(turns))
        return kernel

    def times(self, count: int, *, behind: bool) -> Floats:
        """Launch ``count`` times; return event and enqueue times in ns, shape (count, 2)."""
        found = np.empty((count, 2))
        size, group = (self._items,), (_LOCAL,)
        for index in range(count):
            if behind:
                cl.enqueue_nd_range_kernel(self._queue, self._longer, size, group)
            began_ns = time.perf_counter_ns()
            event = cl.enqueue_nd_range_kernel(self._queue, self._kernel, size, group)
            enqueued_ns = time.perf_counter_ns()
            event.wait()
            found[index] = event.profile.end - event.profile.start, enqueued_ns - began_ns
        return found


def block(spinner: Spinner, processor: int | None, mode: str, process: int, round_: int) -> Block:
    """Time one block; ``processor`` is the processor of the mode *bound*."""
    with launching_from(processor if mode == "bound" else None):
        spinner.times(20, behind=False)
        found = spinner.times(_LAUNCHES, behind=mode == "behind")
        began_ns = time.perf_counter_ns()
        sum(turn * turn for turn in range(_LOOP_TURNS))
        loop_ns = time.perf_counter_ns() - began_ns
    event, enqueue = found.T
    usual = (event < 1.5 * np.median(event)) & (enqueue < 2 * np.median(enqueue))
    low, high = np.percentile(event, [25, 75])
    return Block(
        process=process,
        round=round_,
        mode=mode,
        event_ns=float(np.median(event)),
        event_iqr_ns=float(high - low),
        enqueue_ns=float(np.median(enqueue)),
        python_loop_ns=float(loop_ns),
        correlation=correlation(event[usual], enqueue[usual]),
    )


def correlation(one: Floats, other: Floats) -> float:
    """Return Pearson's correlation; 0 if one of the two does not vary."""
    if len(one) < 2 or not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


@contextmanager
def worker(number: int, device: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that times a block for each line that it receives."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.device.host_share"]
    command += ["--device", device, "--worker", str(number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], line: str = "") -> str:
    """Send a line, if any, and return the answer."""
    assert process.stdin is not None, "made with a pipe"
    assert process.stdout is not None, "made with a pipe"
    if line:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit("a process has ended")
    return answer


def serve(ref: DeviceRef, number: int) -> None:
    """Time a block for each line of stdin, as a worker process."""
    spinner = Spinner(ref)
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        made = block(spinner, job["processor"], job["mode"], number, job["round"])
        print(json.dumps(asdict(made)), flush=True)


def summary(blocks: Sequence[Block]) -> list[str]:
    """Return a line for each mode."""
    lines = [
        "mode     event, ns   IQR in a block   between blocks   between processes   enqueue, ns   between processes"
        "   correlation within, between   slope   Python loop, us"
    ]
    for mode in MODES:
        found = [one for one in blocks if one.mode == mode]
        event = np.array([one.event_ns for one in found])
        enqueue = np.array([one.enqueue_ns for one in found])
        numbers = sorted({one.process for one in found})
        by_process = [[one for one in found if one.process == number] for number in numbers]
        events = [np.median([one.event_ns for one in of]) for of in by_process]
        calls = [np.median([one.enqueue_ns for one in of]) for of in by_process]
        slope = float(np.polyfit(enqueue, event, 1)[0]) if enqueue.std() else 0.0
        lines.append(
            f"{mode:8}{np.median(event):10.0f}{np.median([one.event_iqr_ns for one in found]):17.0f}{event.std():17.0f}"
            f"{np.std(events):20.0f}{np.median(enqueue):14.0f}{np.std(calls):20.0f}"
            f"{np.median([one.correlation for one in found]):21.2f}{correlation(event, enqueue):9.2f}{slope:8.2f}"
            f"{np.median([one.python_loop_ns for one in found]) / 1e3:18.0f}"
        )
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device.host_share", description=__doc__
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(given.processes, given.rounds) < 1:
        parser.error("--processes and --rounds must be 1 or more")
    ref = choose(given.device)
    if isinstance(ref, NoDevice):
        parser.error(ref.message())
    if given.worker is not None:
        serve(ref, given.worker)
        return
    mine = os.sched_getaffinity(0)
    processor = next(iter(for_launches(mine)), max(mine))
    blocks: list[Block] = []
    with ExitStack() as stack:
        workers = [
            stack.enter_context(worker(number, given.device)) for number in range(given.processes)
        ]
        for process in workers:
            ask(process)
        for round_ in range(given.rounds):
            for mode in MODES:
                line = json.dumps({"mode": mode, "round": round_, "processor": processor})
                blocks += [Block(**json.loads(ask(process, line))) for process in workers]
    print("\n".join(summary(blocks)))
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(asdict(blocks[0])))
            writer.writeheader()
            writer.writerows(map(asdict, blocks))


if __name__ == "__main__":
    main()
