"""How the steps of another process change the times of our launches on the same device.

``python -m benchmarks.device.time_slices --device cuda:0 [--launch-ms 3] [--rounds 3] [--out
FILE.csv]``

A GPU with work of two contexts gives each of them slices of time. This process repeatedly launches
a kernel of about ``--launch-ms`` and waits for each launch. Meanwhile other processes, the
visitors, open a context on the device, build, load, allocate and launch, with a pause after each
step. Each row is one step: its time, the number of launches that overlapped it (or began up to 10
ms after it), and how many of these launches were more than 3 % longer than the median of all
launches.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyopencl as cl  # noqa: TID251

from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.discovery.find import NoDevice, choose

SOURCE = """
__kernel void spin(__global float *out, int turns) {
  float x = get_global_id(0) * 1e-9f;
  for (int i = 0; i < turns; i++) x = x * 0.999f + 1e-7f;
  if (x > 9.0f) out[0] = x;
}
__kernel void touch(__global float *out) { out[get_global_id(0)] = 1.0f; }
"""
_VISITOR = """
import gc, json, os, sys, time
import pyopencl as cl
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
device = find_cl_device(DeviceRef(**json.loads(sys.argv[1])))
source = sys.argv[2]
began_s = 0.0
def begin():
    global began_s
    time.sleep(0.1)
    began_s = time.monotonic()
def note(step):
    print(step, began_s, time.monotonic(), sep="|", flush=True)
begin(); time.sleep(0.2); note("nothing")
begin(); context = cl.Context([device]); note("open a context")
queue = cl.CommandQueue(context)
begin(); program = cl.Program(context, f"{source}//{os.getpid()}").build(); note("build from source")
begin(); loaded = cl.Program(context, [device], [bytes(program.binaries[0])]).build(); kernel = cl.Kernel(loaded, "touch"); note("load a program")
begin(); buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, 1 << 26) for _ in range(4)]; note("create buffers")
begin(); cl.enqueue_migrate_mem_objects(queue, buffers, cl.mem_migration_flags.CONTENT_UNDEFINED).wait(); note("make them resident")
kernel.set_arg(0, buffers[0])
for step in ("launch", "launch again"):
    begin(); cl.enqueue_nd_range_kernel(queue, kernel, (1024,), None).wait(); note(step)
begin(); [one.release() for one in buffers]; note("free buffers")
begin(); del kernel, loaded, program, buffers, queue, context; gc.collect(); note("close the context")
os._exit(0)
"""
_ITEMS_PER_UNIT = 8192
_FIRST_TURNS = 2000
_LONGER = 1.03
_AFTER_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch; ``ms`` is its event time, begin and end are on the monotonic clock."""

    began_s: float
    ended_s: float
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a visitor, with its begin and end."""

    name: str
    began_s: float
    ended_s: float


class Launches:
    """A context of this process with a kernel of about ``launch_ms``."""

    def __init__(self, ref: DeviceRef, launch_ms: float) -> None:
        device = find_cl_device(ref)
        context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(context, device, profiling)
        self._kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "spin")
        self._out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
        is_gpu = bool(device.type & cl.device_type.GPU)
        self._items = device.max_compute_units * _ITEMS_PER_UNIT if is_gpu else 4096
        self._turns = _FIRST_TURNS
        self.once()
        self._turns = max(1, round(_FIRST_TURNS * launch_ms / self.once().ms))
        self.once()

    def once(self) -> Launch:
        """Launch, and wait."""
        self._kernel.set_args(self._out, np.int32(self._turns))
        began_s = time.monotonic()
        event = cl.enqueue_nd_range_kernel(self._queue, self._kernel, (self._items,), (256,))
        event.wait()
        ms = (event.profile.end - event.profile.start) / 1e6
        return Launch(began_s=began_s, ended_s=time.monotonic(), ms=ms)


def visit(ref: DeviceRef) -> list[Step]:
    """Run one visitor; return its steps."""
    command = [sys.executable, "-c", _VISITOR, json.dumps(dataclasses.asdict(ref)), SOURCE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = (line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2)
    return [Step(name=one, began_s=float(begin), ended_s=float(end)) for one, begin, end in lines]


def by_step(
    launches: Sequence[Launch], steps: Sequence[Step]
) -> Iterator[tuple[str, float, int, int, float, float]]:
    """Yield for each step: its median ms, launches, longer launches, largest and total excess."""
    usual_ms = statistics.median(one.ms for one in launches)
    for name in dict.fromkeys(one.name for one in steps):
        same = [one for one in steps if one.name == name]
        touched = [
            launch.ms
            for step in same
            for launch in launches
            if launch.ended_s > step.began_s and launch.began_s < step.ended_s + _AFTER_S
        ]
        longer = [ms - usual_ms for ms in touched if ms > _LONGER * usual_ms]
        took_ms = 1e3 * statistics.median(one.ended_s - one.began_s for one in same)
        yield (
            name,
            took_ms,
            len(touched),
            len(longer),
            max(longer, default=0.0),
            sum(longer) / len(same),
        )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device.time_slices", description=__doc__
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--launch-ms", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ref = choose(given.device)
    if isinstance(ref, NoDevice):
        sys.exit(ref.message())
    ours, launches = Launches(ref, given.launch_ms), []
    with ThreadPoolExecutor(1) as thread:
        visits = thread.submit(lambda: [step for _ in range(given.rounds) for step in visit(ref)])
        while not visits.done():
            launches.append(ours.once())
    rows = list(by_step(launches, visits.result()))
    usual_ms = statistics.median(one.ms for one in launches)
    print(f"{len(launches)} launches, median {usual_ms:.3f} ms")
    print("step                 took, ms  launches  longer   most, ms   in all a time, ms")
    for name, took_ms, count, num_longer, most_ms, sum_ms in rows:
        print(f"{name:20}{took_ms:9.1f}{count:10}{num_longer:8}{most_ms:+11.3f}{sum_ms:+12.2f}")
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            columns = "step,took_ms,launches,longer,most_ms,in_all_a_time_ms,median_ms"
            writer.writerow(columns.split(","))
            writer.writerows([*row, usual_ms] for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
