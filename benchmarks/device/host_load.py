"""How much longer a launch looks while the host is busy with other processes.

``python -m benchmarks.device.host_load --device cuda:0 [--processes 12] [--rounds 3] [--out
FILE.csv]``

The device sets the time stamps of an OpenCL event. Between the two stamps it also fetches its
commands from the host. The same launches are timed beside processes that only compute and beside
processes that stream through memory. In each round they are also timed on an idle host before,
between and after these loads. A shared host drifts by itself, so only a difference from the
neighbouring idle times is due to the load. Each of six series has new buffers; a row is the median
of the six medians.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyopencl as cl  # noqa: TID251

from workers.device.opencl.session import OpenclSession, build_program
from workers.discovery.find import NoDevice, choose
from workers.discovery.opening import open_session

SOURCE = """
__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n) {
    int i = get_global_id(0);
    if (i < n) c[i] = a[i] + b[i];
}
"""
_BEGIN = "import os, numpy as np\nparent = os.getppid()\n"
_TURN = "print('on', flush=True)\nwhile os.getppid() == parent: "
LOADS = {
    "idle": "",
    "computing": f"{_BEGIN}{_TURN}sum(i * i & 255 for i in range(10**6))",
    "idle again": "",
    "streaming": f"{_BEGIN}a, b = np.zeros(2**24), np.ones(2**24)\n{_TURN}a += b",
    "and again": "",
}
ITEMS = (2**14, 2**18, 2**20, 2**22, 2**24)
_SERIES, _LAUNCHES = 6, 150


@contextmanager
def busy(code: str, num_processes: int) -> Iterator[None]:
    """Keep the host busy with ``num_processes`` processes, or with none if ``code`` is empty."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(num_processes if code else 0):
            command = [sys.executable, "-c", code]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for one in processes:
            assert one.stdout is not None
            if one.stdout.readline() != "on\n":
                raise RuntimeError("a process that was to load the host did not start")
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()


def series_us(session: OpenclSession, program: cl.Program, items: int) -> tuple[float, float]:
    """Return median and minimum event time in us of launches that are waited for one by one."""
    queue = session._queue
    kernel = cl.Kernel(program, "vadd")
    buffers = [queue.allocate(4 * items) for _ in range(3)]
    for position, buffer in enumerate(buffers):
        queue.fill_bytes(buffer, 0, num_bytes=4 * items)
        kernel.set_arg(position, buffer)
    kernel.set_arg(3, np.int32(items))
    queue.settle()
    times_ns = []
    for _ in range(_LAUNCHES):
        event = cl.enqueue_nd_range_kernel(queue.queue, kernel, (items,), (64,))
        event.wait()
        times_ns.append(event.profile.end - event.profile.start)
    for buffer in buffers:
        buffer.release()
    return float(np.median(times_ns)) / 1e3, min(times_ns) / 1e3


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="CSV: round, load, items, median_us, min_us")
    given = parser.parse_args()
    ref = choose(given.device)
    if isinstance(ref, NoDevice):
        print(ref.message(), file=sys.stderr)
        return 4
    session = open_session(ref)
    assert isinstance(session, OpenclSession), "an OpenCL device is needed"
    program, _ = build_program(session._queue.context, session._queue.cl_device, SOURCE, "")
    rows = []
    for number in range(given.rounds):
        for load, code in LOADS.items():
            with busy(code, given.processes):
                session.spin_up(20)
                for items in ITEMS:
                    found = [series_us(session, program, items) for _ in range(_SERIES)]
                    median_us, least_us = np.median(found, axis=0).round(3).tolist()
                    print(f"{number} {load:10} {items:9} {median_us:9.2f} us, least {least_us:9.2f} us", flush=True)  # fmt: skip
                    rows.append((number, load, items, median_us, least_us))
    session.close()
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("round", "load", "items", "median_us", "min_us"), *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
