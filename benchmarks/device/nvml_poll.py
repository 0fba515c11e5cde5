"""Cost of polling an NVIDIA GPU, its effect on launches, and how the GPU's clock falls and rises.

``python -m benchmarks.device.nvml_poll --device cuda:0 --out
benchmarks/raw/DATE-nvml-poll-HARDWARE.csv``

Prints the cost of each NVML query and of a whole poll (on an idle GPU, and beside launches of the
same process), the sentinel kernel's times with a monitor at several rates, the SM clock for two
seconds after the GPU became idle, and the clock while the GPU works again. The last two show when a
spin-up is needed, and for how long. Every reading is a row of the CSV.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers.device.interface import Session
from workers.device.nvidia.monitor import Monitor, Reading
from workers.device.nvidia.nvml import NvmlAbsent, open_gpu_of
from workers.device.nvidia.nvml_gpu import NvmlGpu
from workers.discovery.find import NoDevice, choose
from workers.discovery.opening import open_session

_COLUMNS = ("part", "name", "round", "at_ms", "value", "reasons")
_BUSY_MS = 1000.0
_REST_S = 3.0
_DECAY_S = 2.0
_DECAY_STEP_S = 0.005
_RISE_HZ = 500.0
_NEAR = 0.95
"""A clock above this share of the clock under load has not fallen yet, or has risen again."""

Row = tuple[object, ...]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--polls", type=int, default=300, help="calls of each query")
    parser.add_argument(
        "--sentinels", type=int, default=40, help="sentinel readings for each polling rate"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of falls and rises of the clock"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ref = choose(arguments.device)
    if isinstance(ref, NoDevice):
        sys.exit(ref.message())
    rows: list[Row] = []
    with open_session(ref) as session:
        gpu = _open_timed(session)
        with gpu:
            print(f"{session.device.name}, {session.device.driver}; {gpu.limits()}; {gpu.health()}")
            rows += _costs("resting", gpu, arguments.polls)
            with _load(session):
                rows += _costs("beside launches", gpu, arguments.polls)
            rows += _disturbance(session, arguments.sentinels)
            for number in range(arguments.rounds):
                rows += _fall(session, gpu, number)
            for number in range(arguments.rounds):
                rows += _rise(session, number)
    if arguments.out:
        with arguments.out.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(_COLUMNS)
            writer.writerows(rows)
    return 0


def _open(session: Session) -> NvmlGpu:
    gpu = open_gpu_of(session.device)
    if gpu is None:
        sys.exit(f"{session.device.name} is not an NVIDIA GPU")
    if isinstance(gpu, NvmlAbsent):
        sys.exit(f"{gpu.reason}: {gpu.mend}")
    return gpu


def _open_timed(session: Session) -> NvmlGpu:
    """Return the opened card; print the times of the first and the second opening of NVML."""
    start_s = time.perf_counter()
    first = _open(session)
    first_s = time.perf_counter()
    second = _open(session)
    print(
        f"opening NVML: {(first_s - start_s) * 1e3:.1f} ms, again {(time.perf_counter() - first_s) * 1e3:.2f} ms"
    )
    second.close()
    return first


def _costs(state: str, gpu: NvmlGpu, num_calls: int) -> list[Row]:
    print(f"cost of a query, {state} (median, 95 %, most; µs)")
    rows: list[Row] = []
    queries: dict[str, Callable[[], Any]] = {
        **gpu.queries(),
        "compute_processes": gpu.compute_processes,
        "health": gpu.health,
        "whole poll": lambda: gpu.read(0.0),
    }
    for name, query in queries.items():
        costs_us, answer = [], None
        for _ in range(num_calls):
            start_ns = time.perf_counter_ns()
            answer = query()
            costs_us.append((time.perf_counter_ns() - start_ns) / 1e3)
        costs_us.sort()
        most = costs_us[-1]
        high = costs_us[int(0.95 * (num_calls - 1))]
        print(f"  {name:<18} {statistics.median(costs_us):9.1f} {high:9.1f} {most:9.1f}   {answer}")
        rows += [
            (f"cost {state}", name, n, "", f"{cost:.2f}", "") for n, cost in enumerate(costs_us)
        ]
    return rows


@contextmanager
def _load(session: Session) -> Iterator[None]:
    """Keep the device busy from a thread, as the launches of a run child do."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            session.spin_up(20.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(_BUSY_MS / 1e3)
    try:
        yield
    finally:
        over.set()
        thread.join()


def _disturbance(session: Session, num_readings: int) -> list[Row]:
    """Time the sentinel kernel beside monitors of several rates; first and last without one."""
    print("sentinel beside a monitor (median, interquartile range; ns)")
    rows: list[Row] = []
    for name, poll_hz in (("none", 0.0), ("10 Hz", 10.0), ("100 Hz", 100.0), ("none again", 0.0)):
        session.spin_up(_BUSY_MS)
        monitor = Monitor(_open(session), poll_hz=poll_hz) if poll_hz else None
        start_s = time.perf_counter()
        times_ns = [session.sentinel_ns() for _ in range(num_readings)]
        took_s = time.perf_counter() - start_s
        if monitor is not None:
            monitor.close()
        low, middle, high = statistics.quantiles(times_ns, n=4)
        print(f"  {name:<10} {middle:12,.0f} {high - low:10,.0f}   {took_s:.2f} s of wall clock")
        rows += [("sentinel", name, n, "", f"{one:.1f}", "") for n, one in enumerate(times_ns)]
    return rows


def _fall(session: Session, gpu: NvmlGpu, number: int) -> list[Row]:
    """Read the clock for two seconds after a second of work."""
    with _load(session):
        busy_mhz = gpu.read(0.0).sm_clock_mhz
    start_s = time.monotonic()
    readings: list[Reading] = []
    while (now_s := time.monotonic()) < start_s + _DECAY_S:
        readings.append(_clock_only(gpu, now_s - start_s))
        left_s = start_s + len(readings) * _DECAY_STEP_S - time.monotonic()
        time.sleep(max(0.0, left_s))
    fallen = _first(readings, lambda one: _is_below(one, busy_mhz))
    idle = _first(readings, lambda one: one.is_idle)
    print(
        f"fall {number}: {busy_mhz} MHz at work; below 95 % of it after {fallen}, idle reason after {idle}; "
        f"at the end {readings[-1].sm_clock_mhz} MHz, {gpu.read(0.0).power_w} W"
    )
    for at_s in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 1.9):
        near = min(readings, key=lambda one: abs(one.at_s - at_s))
        print(f"  {near.at_s * 1e3:7.0f} ms  {near.sm_clock_mhz} MHz  {near.reasons!r}")
    return [_clock_row("fall", number, one) for one in readings]


def _rise(session: Session, number: int) -> list[Row]:
    """Let the GPU rest, then read its clock during a second of work."""
    time.sleep(_REST_S)
    with Monitor(_open(session), poll_hz=_RISE_HZ) as monitor:
        time.sleep(0.05)
        start_s = time.monotonic()
        session.spin_up(_BUSY_MS)
        readings = [_moved(one, start_s) for one in monitor.readings()]
    last_mhz = readings[-1].sm_clock_mhz
    at_work = [one for one in readings if one.at_s >= 0]
    risen = _first(at_work, lambda one: not _is_below(one, last_mhz))
    print(
        f"rise {number}: from {readings[0].sm_clock_mhz} MHz ({readings[0].reasons!r}) to {last_mhz} MHz; "
        f"95 % of it after {risen}"
    )
    return [_clock_row("rise", number, one) for one in readings]


def _clock_only(gpu: NvmlGpu, at_s: float) -> Reading:
    """Read as little as possible, because queries may keep a card awake."""
    queries = gpu.queries()
    return Reading(at_s=at_s, sm_clock_mhz=queries["sm_clock_mhz"](), reasons=queries["reasons"]())


def _moved(reading: Reading, start_s: float) -> Reading:
    return Reading(
        at_s=reading.at_s - start_s, sm_clock_mhz=reading.sm_clock_mhz, reasons=reading.reasons
    )


def _is_below(reading: Reading, mhz: float | None) -> bool:
    clock = reading.sm_clock_mhz
    return clock is not None and mhz is not None and clock < _NEAR * mhz


def _first(readings: list[Reading], holds: Callable[[Reading], bool]) -> str:
    found = next((one for one in readings if holds(one)), None)
    return "never" if found is None else f"{found.at_s * 1e3:.0f} ms"


def _clock_row(part: str, number: int, reading: Reading) -> Row:
    reasons = "" if reading.reasons is None else f"{int(reading.reasons):#x}"
    return (
        part,
        "sm_clock_mhz",
        number,
        f"{reading.at_s * 1e3:.2f}",
        reading.sm_clock_mhz,
        reasons,
    )


if __name__ == "__main__":
    sys.exit(main())
