"""Host time on an OpenCL device of each step that a collector repeats.

``python -m benchmarks.device.launch_costs --device cuda:0 [--out FILE.csv] [--parts
launch,several,steps,memory,load,start]``

* *launch*: wall time of enqueueing one launch, waiting for it and reading its stamps, one by one
  and queued; event time of the same kernel on an idle device and behind other launches;
* *several*: launches enqueued ten at a time, compared with launches waited for one by one, in the
  two ways of ``llmperf collect`` (nan: none of the ten found the device idle);
* *steps*: setting an argument, flushing the cache, finishing an empty queue, a digest;
* *memory*: creating, first fill, second fill and freeing of buffers from 64 KiB to 2 GiB;
* *load*: building from source, and loading the binary in a fresh process with an empty CUDA cache,
  with the cache that the build has filled, and without a cache;
* *start*: a fresh process up to its context and first launch; the time from SIGKILL of a process
  during a launch of about a second until another process's launch takes its usual time again.

The figures are medians of repeats, in microseconds. No part can hang a device, because the longest
launch takes about a second.
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
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyopencl as cl  # noqa: TID251

from llmperf_common.records import LaunchConfig
from workers.device.interface import DeviceRef
from workers.device.opencl.launcher import AT_ONCE, OpenclLauncher
from workers.device.opencl.session import OpenclSession, build_program
from workers.discovery.find import NoDevice, choose
from workers.discovery.opening import open_session
from workers.plan.inputs import FillKind

SOURCE = """
__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n) {
    int i = get_global_id(0);
    if (i < n) c[i] = a[i] + b[i];
}
__kernel void spin(__global float *a, uint turns) {
    float x = a[0];
    for (uint t = 0; t < turns; ++t) x = x * 0.999f + 0.001f;
    a[get_global_id(0)] = x;
}
"""
PARTS = ("launch", "several", "steps", "memory", "load", "start")
Row = tuple[str, str, float]


def median_us(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of ``work``, microseconds."""
    spent = []
    for _ in range(repeats):
        start_ns = time.perf_counter_ns()
        work()
        spent.append(time.perf_counter_ns() - start_ns)
    return float(np.median(spent)) / 1e3


class Bench:
    """One open session with the kernels of ``SOURCE``."""

    def __init__(self, ref: DeviceRef) -> None:
        session = open_session(ref)
        assert isinstance(session, OpenclSession), "an OpenCL device is needed"
        self.session = session
        self.queue = session._queue
        self.context = self.queue.context
        self.program, _ = build_program(self.context, self.queue.cl_device, SOURCE, "")

    def vadd(self, items: int) -> cl.Kernel:
        """Return vadd with its arguments for ``items`` work-items."""
        kernel = cl.Kernel(self.program, "vadd")
        self.buffers = [self.queue.allocate(items * 4) for _ in range(3)]
        for position, buffer in enumerate(self.buffers):
            self.queue.fill(buffer, FillKind.FLOAT32, items, position)
            kernel.set_arg(position, buffer)
        kernel.set_arg(3, np.int32(items))
        return kernel

    def launch(self) -> Iterator[Row]:
        """Yield the times of launches one by one and queued, by size."""
        for items in (2**10, 2**16, 2**20, 2**24):
            kernel, queue = self.vadd(items), self.queue.queue
            shape, local = (items,), (256,)
            self.session.spin_up(50)
            enqueue, wait, stamps, alone = [], [], [], []
            for _ in range(300):
                t0 = time.perf_counter_ns()
                event = cl.enqueue_nd_range_kernel(queue, kernel, shape, local)
                t1 = time.perf_counter_ns()
                event.wait()
                t2 = time.perf_counter_ns()
                start_ns = event.get_profiling_info(cl.profiling_info.START)
                end_ns = event.get_profiling_info(cl.profiling_info.END)
                t3 = time.perf_counter_ns()
                enqueue.append(t1 - t0)
                wait.append(t2 - t1)
                stamps.append(t3 - t2)
                alone.append(end_ns - start_ns)
            what = f"vadd {items}"
            yield what, "enqueue, idle device", float(np.median(enqueue)) / 1e3
            yield what, "wait, one launch", float(np.median(wait)) / 1e3
            yield what, "read two stamps", float(np.median(stamps)) / 1e3
            yield what, "event, idle device", float(np.median(alone)) / 1e3
            queue.finish()
            t0 = time.perf_counter_ns()
            events = [cl.enqueue_nd_range_kernel(queue, kernel, shape, local) for _ in range(300)]
            t1 = time.perf_counter_ns()
            events[-1].wait()
            t2 = time.perf_counter_ns()
            times = [e.profile.end - e.profile.start for e in events[20:]]
            gaps = [b.profile.start - a.profile.end for a, b in itertools.pairwise(events[20:])]
            yield what, "enqueue, busy device", (t1 - t0) / 300e3
            yield what, "a launch, queued, wall", (t2 - t0) / 300e3
            yield what, "event, queued", float(np.median(times)) / 1e3
            yield what, "gap between queued launches", float(np.median(gaps)) / 1e3

    def several(self) -> Iterator[Row]:
        """Yield the times of the same launches, waited for one by one and ten at a time."""
        for items in (2**10, 2**16, 2**20, 2**22):
            launcher = OpenclLauncher(
                queue=self.queue,
                cl_kernel=self.vadd(items),
                config=LaunchConfig(
                    sample_id="", global_size=(items,), local_size=(256,), args=(), regime=None,
                    strategies=(), seed=0,
                ),
                buffers=(),
            )  # fmt: skip
            self.session.spin_up(50)
            start_ns = time.perf_counter_ns()
            waited_for = [launcher.launch() for _ in range(300)]
            between_ns = time.perf_counter_ns()
            at_once = [
                one for _ in range(30) for one in launcher.launch_each(AT_ONCE, refill_seed=0)
            ]
            end_ns = time.perf_counter_ns()
            what = f"vadd {items}"
            yield what, "wall, waited for", (between_ns - start_ns) / 300e3
            yield what, "wall, ten at once", (end_ns - between_ns) / 300e3
            yield what, "event, waited for", float(np.median(waited_for)) / 1e3
            yield what, "event, ten at once", float(np.median(at_once or [np.nan])) / 1e3

    def steps(self) -> Iterator[Row]:
        """Yield the times of the small steps between launches."""
        kernel, queue = self.vadd(2**16), self.queue
        queue.flush_cache()
        queue.queue.finish()
        yield "set_arg", "buffer", median_us(lambda: kernel.set_arg(0, self.buffers[0]), 500)
        yield "set_arg", "scalar", median_us(lambda: kernel.set_arg(3, np.int32(7)), 500)
        yield "finish", "empty queue", median_us(queue.queue.finish, 500)
        yield "flush", "enqueue", median_us(queue.flush_cache, 20)
        queue.queue.finish()

        def flush() -> None:
            queue.flush_cache()
            queue.queue.finish()

        yield "flush", "to its end", median_us(flush, 50)
        yield "digest", "256 KiB", median_us(lambda: queue.digest(self.buffers[0], 2**18), 100)
        yield "sentinel", "seven launches", median_us(self.session.sentinel_ns, 20)
        yield "spin-up", "one load", median_us(lambda: self.session.spin_up(0.001), 20)

    def memory(self) -> Iterator[Row]:
        """Yield the times of buffers by size."""
        for exponent in (16, 20, 24, 28, 31):
            num_bytes = min(2**exponent, self.session.device.max_allocation_bytes)
            spent = []
            for _ in range(5):
                stamps = [time.perf_counter_ns()]
                buffer = self.queue.allocate(num_bytes)
                stamps.append(time.perf_counter_ns())
                for _ in range(2):
                    self.queue.fill(buffer, FillKind.FLOAT32, num_bytes // 4, 1)
                    self.queue.queue.finish()
                    stamps.append(time.perf_counter_ns())
                buffer.release()
                stamps.append(time.perf_counter_ns())
                spent.append(np.diff(stamps))
            for step, value in zip(
                ("create", "first fill", "second fill", "free"),
                np.median(spent, axis=0),
                strict=True,
            ):
                yield f"{num_bytes} bytes", step, float(value) / 1e3


IN_CHILD = """
import json, sys, time
t0 = time.perf_counter()
from pathlib import Path
from workers.discovery.opening import open_session
from workers.device.interface import DeviceRef
from workers.device.opencl.session import build_program
import numpy as np, pyopencl as cl
t1 = time.perf_counter()
job = json.loads(sys.argv[1])
session = open_session(DeviceRef(**job["ref"]))
t2 = time.perf_counter()
queue = session._queue
code = Path(job["binary"]).read_bytes() if job["binary"] else Path(job["source"]).read_text()
program, _ = build_program(queue.context, queue.cl_device, code, "")
kernel = cl.Kernel(program, "spin")
t3 = time.perf_counter()
buffer = queue.allocate(2**20)
kernel.set_arg(0, buffer); kernel.set_arg(1, np.uint32(job["turns"]))
cl.enqueue_nd_range_kernel(queue.queue, kernel, (1024,), (256,)).wait()
t4 = time.perf_counter()
if job["save"]:
    Path(job["save"]).write_bytes(program.binaries[0])
print(json.dumps([t1 - t0, t2 - t1, t3 - t2, t4 - t3]), flush=True)
if job["then"]:
    kernel.set_arg(1, np.uint32(job["then"]))
    event = cl.enqueue_nd_range_kernel(queue.queue, kernel, (1024,), (256,))
    queue.queue.flush(); print("launched", flush=True)
    event.wait()
"""


class Children:
    """Fresh processes that build or load ``SOURCE``."""

    def __init__(self, ref: DeviceRef, folder: Path) -> None:
        self.ref, self.folder = asdict(ref), folder
        self.source = folder / "source.cl"
        self.source.write_text(SOURCE, encoding="utf-8")

    def start(self, *, binary: Path | None = None, save: Path | None = None, turns: int = 10, then: int = 0,
              environment: dict[str, str] | None = None) -> subprocess.Popen[str]:  # fmt: skip
        """Start a process; ``then``: number of turns of a second, long launch."""
        job = {"ref": self.ref, "binary": str(binary or ""), "source": str(self.source), "save": str(save or ""),
               "turns": turns, "then": then}  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-c", IN_CHILD, json.dumps(job)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def load(self) -> Iterator[Row]:
        """Yield the times of building, and of loading with and without the driver's cache."""
        binary, filled = (
            self.folder / "program.bin",
            {"CUDA_CACHE_PATH": str(self.folder / "cuda-0")},
        )
        cases = [
            ("build from source, empty cache", None, filled, 1),
            ("build from source, filled cache", None, filled, 3),
            ("load binary, filled cache", binary, filled, 3),
            (
                "load binary, empty cache",
                binary,
                {"CUDA_CACHE_PATH": str(self.folder / "cuda-1")},
                1,
            ),
            ("load binary, no cache", binary, {"CUDA_CACHE_DISABLE": "1"}, 3),
        ]
        for what, code, environment, repeats in cases:
            spent = [
                self._seconds(binary=code, save=binary, environment=environment)
                for _ in range(repeats)
            ]
            for step, value in zip(
                ("import", "open", "build or load", "first launch"),
                np.median(spent, axis=0),
                strict=True,
            ):
                yield what, step, 1e6 * float(value)

    def _seconds(
        self, *, binary: Path | None, save: Path | None, environment: dict[str, str]
    ) -> list[float]:
        with self.start(binary=binary, save=save, environment=environment) as child:
            assert child.stdout is not None
            return [float(one) for one in json.loads(child.stdout.readline())]

    def killed(self, bench: Bench, long_turns: int) -> Iterator[Row]:
        """Yield the time from a process's kill in a launch to launches of the usual time."""
        kernel = bench.vadd(2**16)

        def once() -> float:
            start_s = time.perf_counter()
            cl.enqueue_nd_range_kernel(bench.queue.queue, kernel, (2**16,), (256,)).wait()
            return time.perf_counter() - start_s

        usual_s = float(np.median([once() for _ in range(100)]))
        with self.start(then=long_turns) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert child.stdout.readline() == "launched\n"
            time.sleep(0.1)
            beside_s = once()
            os.kill(child.pid, signal.SIGKILL)
            killed_s = time.perf_counter()
            child.wait()
            reaped_s = time.perf_counter()
            while once() > 3 * usual_s and time.perf_counter() < killed_s + 20:
                pass
            calm_s = time.perf_counter()
        yield "kill amid a launch", "our launch, before", 1e6 * usual_s
        yield "kill amid a launch", "our launch beside it", 1e6 * beside_s
        yield "kill amid a launch", "SIGKILL to reaped", 1e6 * (reaped_s - killed_s)
        yield "kill amid a launch", "SIGKILL to a usual launch", 1e6 * (calm_s - killed_s)


def turns_of(bench: Bench, milliseconds: float) -> int:
    """Return how many turns of ``spin`` take ``milliseconds``, at most 2 s: a launch must end."""
    kernel = cl.Kernel(bench.program, "spin")
    buffer = bench.queue.allocate(2**20)  # a kernel does not keep its buffers alive
    kernel.set_arg(0, buffer)
    kernel.set_arg(1, np.uint32(100_000))
    event = cl.enqueue_nd_range_kernel(bench.queue.queue, kernel, (1024,), (256,))
    event.wait()
    per_turn_ms = (event.profile.end - event.profile.start) / 1e6 / 100_000
    return int(min(milliseconds, 2000.0) / per_turn_ms)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="CSV: what, step, microseconds")
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    ref = choose(given.device)
    if isinstance(ref, NoDevice):
        print(ref.message(), file=sys.stderr)
        return 4
    parts, rows = given.parts.split(","), []
    with tempfile.TemporaryDirectory() as folder:
        bench, children = Bench(ref), Children(ref, Path(folder))
        sources: dict[str, Callable[[], Iterator[Row]]] = {
            "launch": bench.launch, "several": bench.several, "steps": bench.steps, "memory": bench.memory, "load": children.load,
            "start": lambda: children.killed(bench, turns_of(bench, 1000.0)),
        }  # fmt: skip
        for part in PARTS:
            if part not in parts:
                continue
            for what, step, value in sources[part]():
                print(f"{part:8} {what:34} {step:30} {value:14.1f} us", flush=True)
                rows.append((part, what, step, round(value, 3)))
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("part", "what", "step", "microseconds"))
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
