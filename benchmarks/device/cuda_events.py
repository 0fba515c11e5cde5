"""The same launches through OpenCL and the CUDA driver: are outputs and event times equal?

``python -m benchmarks.device.cuda_events --out FILE.csv`` needs an NVIDIA GPU and pycuda. Each
kernel of ``kernels/`` that has one dimension and no image is launched at each number of ``--items``
work-items, with the inputs of ``workers/plan/inputs.py`` on both sides. Byte-equal outputs show
that OpenCL's PTX was converted correctly for CUDA (``workers/device/cuda/ptx.py``).

OpenCL's event times are the start and the end of the kernel. With CUDA, one event is enqueued
before a launch and one after it, and the idle GPU would wait for the host between them. Therefore
another kernel keeps the GPU busy until both events and the launch are enqueued (``cuda_ns``;
``cuda_idle_ns`` is the time on an idle GPU). ``*_batch_ns`` is the mean of back-to-back launches of
kernels that do not read what they write. CUDA's events have a resolution of about 0.5 us, and a
launch after other work takes about 2 us less. Therefore times below 20 us say little, and the
summary leaves them out. ``registers_opencl`` and ``spill_bytes_opencl`` come from
``-cl-nv-verbose``, the log of OpenCL's own compiler. They show whether both compilations are equal.

``--dry-run`` runs only OpenCL's half, on the CPU device.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.device.cuda_side import Cuda, CudaSide, cuda_side, launch_config, outputs_equal
from llmperf_common.records import ArgumentKind, Kernel, LaunchConfig
from workers.corpus.read import read_sources
from workers.device.cuda.driver import CudaContext
from workers.device.cuda.launcher import CudaError, EventClock
from workers.device.cuda.ptxas_log import notes_on
from workers.device.interface import Compiler, DeviceFailure, Program
from workers.device.opencl.buffers import OpenclLoadedKernel
from workers.device.opencl.launcher import OpenclLauncher
from workers.device.opencl.session import OpenclSession
from workers.discovery.find import NoDevice, choose
from workers.discovery.opening import open_compiler, open_session

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
LEAST_TELLING_NS = 20_000
AGREEMENT = 0.05
_ROUNDS, _READINGS, _WARMUPS = 3, 7, 2
_FEW_ABOVE_NS = 20e6
_SPIN_NS = 100_000
_SPIN_A_LAUNCH_NS = 30_000
_BATCH_NS, _MOST_BATCHED = 1e6, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel at one size; a value that was not measured is None."""

    kernel: str
    global_size: int
    local_size: int
    opencl_ns: float | None = None
    cuda_ns: float | None = None
    ratio: float | None = None
    outputs_equal: bool | None = None
    cuda_idle_ns: float | None = None
    opencl_batch_ns: float | None = None
    cuda_batch_ns: float | None = None
    batch_ratio: float | None = None
    registers: int | None = None
    registers_opencl: int | None = None
    spill_bytes: int | None = None
    spill_bytes_opencl: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    build_ms: float | None = None
    resources_ms: float | None = None
    note: str = ""


def main(command: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _options(command)
    ref = choose("cpu" if options.dry_run else "cuda")
    if isinstance(ref, NoDevice):
        sys.exit(ref.message())
    kernels = [
        one for one in read_sources([options.corpus]).kernels if _is_wanted(one, options.only)
    ]
    rows: list[Row] = []
    with ExitStack() as stack:
        session = stack.enter_context(open_session(ref))
        assert isinstance(session, OpenclSession), "chosen among OpenCL's"
        compiler = open_compiler(ref)
        cuda = None if options.dry_run else Cuda(session.device.device_uuid)
        if cuda is not None:
            stack.callback(cuda.close)
            print(cuda.cost())
        stream = stack.enter_context(options.out.open("w", newline="", buffering=1))
        writer = csv.writer(stream)
        names = [field.name for field in fields(Row)]
        writer.writerow(names)
        for kernel in sorted(kernels, key=lambda one: one.name)[: options.kernels]:
            made = _measured(session, compiler, cuda, kernel, options.items)
            writer.writerows([[_cell(getattr(row, name)) for name in names] for row in made])
            print(made[-1], file=sys.stderr)
            rows += made
    print(summary(rows))
    return 0


def summary(rows: Sequence[Row]) -> str:
    """Return the summary of the rows."""
    compared = [row for row in rows if row.outputs_equal is not None]
    kernels = {row.kernel for row in compared}
    unequal = {row.kernel for row in compared if not row.outputs_equal}
    telling = [row for row in compared if row.ratio and (row.opencl_ns or 0) >= LEAST_TELLING_NS]
    near = [row for row in telling if row.ratio and abs(row.ratio - 1) <= AGREEMENT]
    ratios = [row.ratio for row in telling if row.ratio]
    told = [row for row in compared if row.registers_opencl is not None]
    same = sum(row.registers == row.registers_opencl for row in told)
    lines = [
        f"{len(rows)} launches, {len(compared)} of them ({len(kernels)} kernels) compared: "
        + (f"outputs differ in {', '.join(sorted(unequal))}" if unequal else "all outputs equal"),
        f"from {LEAST_TELLING_NS / 1000:g} us on: {len(near)} of {len(telling)} launches "
        f"({len({row.kernel for row in near})} kernels) within {AGREEMENT:.0%}, "
        + (f"median ratio {statistics.median(ratios):.4f}, {min(ratios):.3f} to {max(ratios):.3f}" if ratios else "none"),
        f"registers as OpenCL's compiler says: {same} of {len(told)} launches",
    ]  # fmt: skip
    costs = [row.resources_ms for row in compared if row.resources_ms is not None]
    if costs:
        lines.append(
            f"resources: median {statistics.median(costs):.1f} ms, most {max(costs):.1f} ms"
        )
    lines += [f"{row.kernel} at {row.global_size}: {row.note}" for row in rows if row.note]
    return "\n".join(lines)


def _measured(
    session: OpenclSession, compiler: Compiler, cuda: Cuda | None, kernel: Kernel, items: Sequence[int]
) -> list[Row]:  # fmt: skip
    rows = []
    for count in items:
        config = launch_config(kernel, count)
        row = Row(kernel=kernel.name, global_size=count, local_size=config.local_size[0])
        try:
            program = compiler.compile(kernel)
            loaded = session.load(kernel, program)
            row = replace(row, build_ms=program.seconds * 1e3)
            if cuda is not None:
                row = _with_resources(row, compiler, cuda.context, kernel, program)
            row = _timed(row, session, loaded, cuda, kernel, program, config)
            loaded.release()
        except (DeviceFailure, CudaError) as error:
            row = replace(row, note=str(error).splitlines()[0][:200])
            if cuda is not None:
                cuda.reopen()
        rows.append(row)
    return rows


def _with_resources(
    row: Row, compiler: Compiler, context: CudaContext, kernel: Kernel, program: Program
) -> Row:
    assert kernel.signature is not None, "kernels without one are left out"
    required = kernel.signature.required_local_size
    found = context.resources(
        program.binary,
        kernel.name,
        work_dim=1,
        work_group_size=math.prod(required) if required else None,
    )
    options = f"{kernel.build_options} -cl-nv-verbose".strip()
    log = compiler.compile(replace(kernel, build_options=options)).log
    told = notes_on(log, kernel.name)
    return replace(
        row, registers=found.registers, spill_bytes=found.spill_bytes, shared_bytes=found.shared_bytes,
        occupancy=found.occupancy, resources_ms=found.seconds * 1e3,
        registers_opencl=told.registers, spill_bytes_opencl=told.spill_store_bytes,
    )  # fmt: skip


def _timed(
    row: Row, session: OpenclSession, loaded: OpenclLoadedKernel, cuda: Cuda | None, kernel: Kernel,
    program: Program, config: LaunchConfig,
) -> Row:  # fmt: skip
    side = None
    if cuda is not None:
        side = cuda_side(cuda.context, kernel, program, config)
        row = replace(row, outputs_equal=outputs_equal(cuda.context, kernel, loaded, side, config))
    launcher = loaded.prepare(config)
    ways: dict[str, Callable[[], float]] = {"opencl_ns": lambda: _opencl_ns(launcher, config.seed)}
    if cuda is not None and side is not None:
        clock, launch = cuda.clock, side
        ways["cuda_ns"] = lambda: _cuda_ns(clock, launch, launcher.needs_refill, _SPIN_NS)
        ways["cuda_idle_ns"] = lambda: _cuda_ns(clock, launch, launcher.needs_refill, 0)
    first_ns = [_opencl_ns(launcher, config.seed) for _ in range(_WARMUPS)][-1]
    times = _medians(session, ways, few=first_ns > _FEW_ABOVE_NS)
    if not launcher.needs_refill:
        count = round(max(2, min(_MOST_BATCHED, _BATCH_NS / max(1, first_ns))))
        ways = {"opencl_batch_ns": lambda: launcher.launch(count)}
        if cuda is not None and side is not None:
            spin_ns = _SPIN_NS + count * _SPIN_A_LAUNCH_NS
            ways["cuda_batch_ns"] = lambda: clock.time_ns(launch.launch, count, spin_ns=spin_ns)
        times |= _medians(session, ways, few=first_ns > _FEW_ABOVE_NS)
    return replace(
        row, **times, ratio=_ratio(times, "cuda_ns", "opencl_ns"),
        batch_ratio=_ratio(times, "cuda_batch_ns", "opencl_batch_ns"),
    )  # fmt: skip


def _opencl_ns(launcher: OpenclLauncher, seed: int) -> float:
    if launcher.needs_refill:
        launcher.refill(seed=seed)
    return launcher.launch()


def _cuda_ns(clock: EventClock, side: CudaSide, needs_refill: bool, spin_ns: int) -> float:
    if needs_refill:
        side.refill()
    return clock.time_ns(side.launch, spin_ns=spin_ns)


def _medians(
    session: OpenclSession, ways: dict[str, Callable[[], float]], *, few: bool
) -> dict[str, float]:
    """Return the median of each way; readings alternate, so that no clock favours a way."""
    rounds, readings = (1, 3) if few else (_ROUNDS, _READINGS)
    session.spin_up(20)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            measure()  # the first after the other driver's work is not counted
            taken[name] += [measure() for _ in range(readings)]
    return {name: statistics.median(values) for name, values in taken.items()}


def _ratio(times: dict[str, float], name: str, by: str) -> float | None:
    return times[name] / times[by] if times.get(name) and times.get(by) else None


def _is_wanted(kernel: Kernel, only: Sequence[str]) -> bool:
    signature = kernel.signature
    if kernel.failure is not None or signature is None or signature.dims != 1:
        return False
    usable = all(
        one.kind.is_buffer or one.kind is ArgumentKind.SCALAR for one in signature.arguments
    )
    return usable and (not only or kernel.name in only)


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def _options(command: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument(
        "--corpus",
        type=Path,
        default=KERNELS,
        help="of safe kernels; Parquet where there is no libclang",
    )
    parser.add_argument(
        "--items", type=int, nargs="+", default=[2**20, 2**23], help="numbers of work-items"
    )
    parser.add_argument("--kernels", type=int, default=1000, help="maximum number of kernels")
    parser.add_argument("--only", nargs="+", default=[], help="names of kernels")
    parser.add_argument(
        "--dry-run", action="store_true", help="run only the OpenCL part, on the CPU"
    )
    return parser.parse_args(command)


if __name__ == "__main__":
    sys.exit(main())
