"""How freeing a buffer changes the times of the launches that follow.

``python -m benchmarks.device.freed_memory --device cuda:0 [--rounds 2] [--out FILE.csv]``

A kernel is launched repeatedly, with a wait for each launch, before and after an event: a buffer is
freed (or made). The kernel either reads 256 MiB (4 MiB on a CPU device) or only computes. Each row
is one event. It has the time of the call that freed the buffer, and for how long and by how much
the launches after it were longer. Launches count as longer while the median of eight launches in a
row is more than 5 % above the median before the event.
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
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyopencl as cl  # noqa: TID251

from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.discovery.find import NoDevice, choose

SOURCE = """
__kernel void read(__global const float4 *data, __global float4 *out, ulong n) {
  float4 sum = 0.0f;
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) sum += data[i];
  if (sum.x == -1.5f) out[0] = sum;
}
__kernel void compute(__global float *out, int turns) {
  float x = get_global_id(0) * 1e-9f;
  for (int i = 0; i < turns; i++) x = x * 0.999f + 1e-7f;
  if (x > 9.0f) out[0] = x;
}
__kernel void use(__global float4 *data, ulong n) {
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) data[i] = 1.0f;
}
"""
_OTHER = """
import json, sys
from benchmarks.device.freed_memory import Bench
from workers.device.interface import DeviceRef
bench = Bench(DeviceRef(**json.loads(sys.argv[1])))
for line in sys.stdin:
    buffer = bench.used(int(line))
    print("used", flush=True)
    sys.stdin.readline()
    buffer.release()
    print("freed", flush=True)
"""
WHATS = ("free", "free, other process", "free, never used", "make and use", "nothing")
SIZES_MIB = (2, 32, 128, 512, 2048, 8192)
_ITEMS_OF_GPU, _ITEMS_OF_CPU, _GROUP = 2**18, 2**12, 256
_READ_BYTES_OF_GPU, _READ_BYTES_OF_CPU = 256 * 2**20, 4 * 2**20
_TURNS = 4000
_BEFORE = 60
_IN_A_ROW = 8
_LONGER = 1.05
_WATCHED_S = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One event. After it launches took ``factor`` times as long (median) for ``longer_ms``."""

    what: str
    mib: int
    kernel: str
    launch_us: float
    call_ms: float
    longer_ms: float
    factor: float


class Bench:
    """A context with the kernels, and a buffer that is read.

    Args:
        ref: the device.
    """

    def __init__(self, ref: DeviceRef) -> None:
        device = find_cl_device(ref)
        self.context = cl.Context([device])
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, device, properties)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's messages
            program = cl.Program(self.context, SOURCE).build()
        self._kernels = {name: cl.Kernel(program, name) for name in ("read", "compute", "use")}
        is_gpu = bool(device.type & cl.device_type.GPU)
        self._num_items = _ITEMS_OF_GPU if is_gpu else _ITEMS_OF_CPU
        self._read_bytes = _READ_BYTES_OF_GPU if is_gpu else _READ_BYTES_OF_CPU

    def made(self, num_bytes: int) -> cl.Buffer:
        """Return a buffer; the driver gives it memory pages at its first use."""
        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, num_bytes)

    def used(self, num_bytes: int) -> cl.Buffer:
        """Return a buffer that has been written."""
        buffer = self.made(num_bytes)
        self._launch("use", buffer, np.uint64(num_bytes // 16))
        return buffer

    def launcher(self, kernel: str) -> Callable[[], float]:
        """Return a function that launches ``read`` or ``compute`` and returns the time in ns."""
        out = self.made(4096)
        if kernel == "compute":
            return lambda: self._launch("compute", out, np.int32(_TURNS))
        data = self.used(self._read_bytes)
        return lambda: self._launch("read", data, out, np.uint64(data.size // 16))

    def _launch(self, name: str, *arguments: object) -> float:
        kernel = self._kernels[name]
        kernel.set_args(*arguments)
        event = cl.enqueue_nd_range_kernel(self.queue, kernel, (self._num_items,), (_GROUP,))
        event.wait()
        return float(event.profile.end - event.profile.start)


def longer_until(times_s: Sequence[float], ratios: Sequence[float]) -> tuple[float, float]:
    """Return for how many ms launches are longer, and their median ratio in this time.

    Args:
        times_s: end of each launch, in s since the event.
        ratios: ratio of each launch's time to the time before the event.

    >>> longer_until([0.001 * i for i in range(20)], [1.2] * 10 + [1.0] * 10)
    (10.0, 1.2)
    >>> longer_until([0.001 * i for i in range(20)], [1.0] * 20), longer_until([0.002], [1.2])
    ((0.0, 1.0), (2.0, 1.2))
    """
    for first, ratio in enumerate(ratios):
        soon = statistics.median(ratios[first : first + _IN_A_ROW])
        if max(ratio, soon) <= _LONGER:
            return (
                (1e3 * times_s[first], statistics.median(ratios[:first])) if first else (0.0, 1.0)
            )
    return 1e3 * times_s[-1], statistics.median(ratios)


def event_rows(ref: DeviceRef, sizes_mib: Sequence[int], rounds: int) -> Iterator[Row]:
    """Yield a row for each event."""
    bench = Bench(ref)
    reference = json.dumps(dataclasses.asdict(ref))
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", _OTHER, reference]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        asked, answers = other.stdin, other.stdout
        assert asked is not None
        assert answers is not None

        def tell(line: str) -> None:
            asked.write(f"{line}\n")
            asked.flush()
            if not answers.readline():
                raise RuntimeError("the other process has ended")

        usual_mib = sizes_mib[-2:][0]
        for _ in range(rounds):
            for mib in sizes_mib:
                yield _row(bench, "free", mib, "read", tell)
            for what in WHATS[1:]:
                yield _row(bench, what, usual_mib, "read", tell)
            yield _row(bench, "free", usual_mib, "compute", tell)


def _row(bench: Bench, what: str, mib: int, kernel: str, tell: Callable[[str], None]) -> Row:
    launch, num_bytes = bench.launcher(kernel), mib * 2**20
    held: list[cl.Buffer] = []
    if what == "free":
        held.append(bench.used(num_bytes))
    elif what == "free, never used":
        held.append(bench.made(num_bytes))
    elif what == "free, other process":
        tell(str(num_bytes))
    time.sleep(_WATCHED_S)  # meanwhile the driver clears memory that an earlier row freed
    before_ns = statistics.median([launch() for _ in range(2 * _BEFORE)][_BEFORE:])
    began_s = time.perf_counter()
    if what.startswith("free") and held:
        held.pop().release()
    elif what == "free, other process":
        tell("free it")
    elif what == "make and use":
        held.append(bench.used(num_bytes))
    called_s = time.perf_counter()
    times_s, ratios = [], []
    while not times_s or times_s[-1] < _WATCHED_S:
        ratios.append(launch() / before_ns)
        times_s.append(time.perf_counter() - called_s)
    longer_ms, factor = longer_until(times_s, ratios)
    return Row(
        what=what,
        mib=mib,
        kernel=kernel,
        launch_us=before_ns / 1e3,
        call_ms=1e3 * (called_s - began_s),
        longer_ms=longer_ms,
        factor=factor,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device.freed_memory", description=__doc__
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes-mib", type=int, nargs="+", default=SIZES_MIB)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ref = choose(given.device)
    if isinstance(ref, NoDevice):
        parser.error(ref.message())
    rows = []
    for row in event_rows(ref, given.sizes_mib, given.rounds):
        rows.append(row)
        print(
            f"{row.what:20} {row.mib:6} MiB  {row.kernel:8} {row.launch_us:9.1f} us  call {row.call_ms:7.2f} ms"
            f"  longer for {row.longer_ms:6.2f} ms, {row.factor:.3f} times",
            flush=True,
        )
    if given.out is not None:
        with given.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, [field.name for field in dataclasses.fields(Row)])
            writer.writeheader()
            writer.writerows(dataclasses.asdict(row) for row in rows)


if __name__ == "__main__":
    main()
