"""How long calls to a GPU's driver take while another process opens or ends a context on a card.

``python -m benchmarks.device.driver_stalls --device cuda:0 --beside cuda:1 [--rounds 4] [--out
FILE.csv]``

A driver has locks that all GPUs of a host share, so a call for one GPU may wait for another GPU.
This process repeatedly times launches, a copy, the allocation and first use of 64 MiB, the freeing
of this memory and the loading of a program. Meanwhile other processes, the visitors, use the device
``--beside`` (another device or the same). A visitor looks for its devices, opens a context,
launches, waits, and then exits or is killed by SIGKILL. Each row is one call in one phase of the
visitors: the number of calls that overlapped the phase, their mean time and their maximum time. In
the phase "alone" there was no visitor.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyopencl as cl  # noqa: TID251

from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.discovery.find import NoDevice, choose

SOURCE = "__kernel void scale(__global float *x) { int i = get_global_id(0); x[i] = x[i] * 0.5f + 1.0f; }"
_VISITOR = """
import json, os, signal, sys, time
print("imports", flush=True)
import pyopencl as cl
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
print("looks for devices", flush=True)
device = find_cl_device(DeviceRef(**json.loads(sys.argv[1])))
print("opens a context", flush=True)
context = cl.Context([device])
queue = cl.CommandQueue(context)
print("launches", flush=True)
kernel = cl.Kernel(cl.Program(context, sys.argv[3]).build(), "scale")
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 1 << 22)
kernel.set_arg(0, buffer)
cl.enqueue_nd_range_kernel(queue, kernel, (1 << 20,), None)
queue.finish()
print("stays", flush=True)
time.sleep(0.4)
print(sys.argv[2], flush=True)
if sys.argv[2] == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
_ITEMS, _BYTES, _PAUSE_S = 1 << 20, 64 << 20, 0.8

Call = tuple[str, float, float]
"""Name of the call, time of its begin and time of its end, s."""


class Probe:
    """This process's context, and one round of calls in it."""

    def __init__(self, ref: DeviceRef) -> None:
        self._device = find_cl_device(ref)
        self._context = cl.Context([self._device])
        self._queue = cl.CommandQueue(self._context)
        program = cl.Program(self._context, SOURCE).build()
        self._binary = program.binaries[0]
        self._kernel = cl.Kernel(program, "scale")
        self._buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, 4 * _ITEMS)
        self._zeros = np.zeros(1024, dtype=np.float32)
        cl.enqueue_fill_buffer(self._queue, self._buffer, np.float32(0), 0, 4 * _ITEMS)

    def calls(self) -> Iterator[Call]:
        """Make each call once."""
        began_s = time.monotonic()
        self._launch(self._kernel, 20)
        yield "20 launches", began_s, (ended_s := time.monotonic())
        cl.enqueue_copy(self._queue, self._zeros, self._buffer)
        yield "copy 4 KiB", ended_s, (began_s := time.monotonic())
        buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, _BYTES)
        cl.enqueue_fill_buffer(self._queue, buffer, np.float32(0), 0, _BYTES)
        self._queue.finish()
        yield "allocate 64 MiB", began_s, (ended_s := time.monotonic())
        buffer.release()
        yield "free", ended_s, (began_s := time.monotonic())
        program = cl.Program(self._context, [self._device], [self._binary]).build()
        self._launch(cl.Kernel(program, "scale"), 1)
        yield "load a program", began_s, time.monotonic()

    def _launch(self, kernel: cl.Kernel, count: int) -> None:
        kernel.set_arg(0, self._buffer)
        for _ in range(count):
            cl.enqueue_nd_range_kernel(self._queue, kernel, (_ITEMS,), None)
        self._queue.finish()


def visit(ref: DeviceRef, end: str, phases: list[tuple[str, float]]) -> None:
    """Run one visitor; append each of its phases with its begin, last the end of the visitor."""
    reference = json.dumps(dataclasses.asdict(ref))
    command = [sys.executable, "-c", _VISITOR, reference, end, SOURCE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        phases.extend((line.strip(), time.monotonic()) for line in process.stdout)
    if phases[-1][0] != end:
        raise RuntimeError(f"a visitor came as far as {phases[-1][0]!r}")
    phases.append(("alone", time.monotonic()))


def watch(
    probe: Probe, beside: DeviceRef, rounds: int
) -> tuple[list[Call], list[tuple[str, float]]]:
    """Make calls until all visitors have ended; return the calls and the begins of phases."""
    phases: list[tuple[str, float]] = [("alone", time.monotonic())]

    def come_and_go() -> None:
        for end in ("leaves", "is killed") * rounds:
            time.sleep(_PAUSE_S)
            visit(beside, end, phases)
        time.sleep(_PAUSE_S)

    calls: list[Call] = []
    with ThreadPoolExecutor(1) as thread:
        visitors = thread.submit(come_and_go)
        while not visitors.done():
            calls += probe.calls()
            time.sleep(0.001)
        visitors.result()
    return calls, phases


def by_phase(
    calls: list[Call], phases: list[tuple[str, float]]
) -> Iterator[tuple[str, str, int, float, float]]:
    """Yield phase, call, number of calls in the phase, and mean and maximum time in ms."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    ends_s = [begin_s for _, begin_s in phases[1:]] + [float("inf")]
    for (phase, begin_s), end_s in zip(phases, ends_s, strict=True):
        for name, called_s, returned_s in calls:
            if returned_s >= begin_s and called_s < end_s:
                found[phase, name].append(1e3 * (returned_s - called_s))
    for (phase, name), times_ms in found.items():
        yield phase, name, len(times_ms), sum(times_ms) / len(times_ms), max(times_ms)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0", help="device whose calls are timed")
    parser.add_argument("--beside", default="cuda:1", help="device that the other processes use")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    refs = [choose(name) for name in (given.device, given.beside)]
    for ref in refs:
        if isinstance(ref, NoDevice):
            sys.exit(ref.message())
    device, beside = (ref for ref in refs if isinstance(ref, DeviceRef))
    rows = list(by_phase(*watch(Probe(device), beside, given.rounds)))
    for phase, name, count, mean_ms, most_ms in rows:
        print(f"{phase:18} {name:16} {count:6} {mean_ms:9.3f} {most_ms:9.2f}")
    if given.out:
        with given.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["phase", "call", "count", "mean_ms", "most_ms"])
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
