"""Part (c): a plain loop in one process, as a competent engineer writes it in an afternoon.

``python -m benchmarks.collecting.collectors.plain_loop WORK.json LOG.jsonl``. With
``PLAIN_LOOP_BOUND=1`` all launches come from one processor, as in LLMPerf.

Each kernel is built from source in the same process. Its buffers are as large as its largest launch
configs need. For each launch config the buffers are filled on the device, by LLMPerf's fill
kernels, so that the contents are the same. Then come warm-ups, readings by LLMPerf's stop rule,
refills if the kernel reads what it writes, and cold readings after a flush of the last-level cache.
Median, minimum, quartile distance and mean go to the log. There is no isolation, no check and no
durability. If an error occurs during the wait for a launch, the context may be broken. Then the
process ends, and its supervisor starts another process that continues after the present kernel.

``PLAIN_LOOP_BUFFERS=config`` allocates and frees buffers for each launch config. Each config is
then timed while NVIDIA's driver clears the last config's buffers
(``workers/device/opencl/freed_memory.py``); by default this happens to a kernel's first configs
only. ``cleared`` is like ``config``, but each config waits until the clearing has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl  # noqa: TID251  (this part uses it as users do)

from benchmarks.collecting.collectors.jobs import GUARD_BYTES, Job, allocated_bytes, read_work
from benchmarks.collecting.collectors.log import PartLog, begun_items, read_log
from benchmarks.collecting.collectors.plain_buffers import BUFFER_RULES, PlainBuffers
from llmperf_common.records import Access, Argument, ArgumentKind, LaunchArgument, LaunchConfig
from workers.config import TimingConfig
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.device.opencl.queue import set_scalar
from workers.measure.launch_processor import launching_from
from workers.measure.stop_rule import StopRule
from workers.measure.timing import ONE_WARMUP_NS, launches_per_reading
from workers.plan.inputs import fill_specs, pack_scalar
from workers.sandbox.processors import for_launches
from workers.timing_rule import TimingRule

EXIT_LOST_CONTEXT = 3
_SET_BYTES_AT_ONCE = 16
BOUND_VARIABLE = "PLAIN_LOOP_BOUND"
BUFFERS_VARIABLE = "PLAIN_LOOP_BUFFERS"
"""Environment variable that names one of ``plain_buffers.BUFFER_RULES``; the first by default."""


class LostContextError(Exception):
    """A launch failed on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fill:
    """One fill kernel over one buffer, ready to be enqueued."""

    kernel: cl.Kernel
    arguments: tuple[Any, ...]
    num_items: int
    is_written: bool


class PlainLoop:
    """A context, a queue and the loop's body."""

    def __init__(
        self,
        ref: DeviceRef,
        rule: TimingRule,
        *,
        timer_step_ns: float | None,
        last_level_cache_bytes: int,
        buffers: str = BUFFER_RULES[0],
    ) -> None:
        device = find_cl_device(ref)
        self.context = cl.Context([device])
        self._rule = rule
        self._timer_step_ns = timer_step_ns
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(self.context, device, properties)
        source = resources.files("workers.device.opencl").joinpath("fill.cl").read_text()
        self._own = cl.Program(self.context, source).build()
        self._kernels: dict[str, cl.Kernel] = {}
        self._is_idle = True
        self._buffers = PlainBuffers(
            self.context, max_bytes=device.max_mem_alloc_size, rule=buffers
        )
        self._local = min(
            64 if device.type & cl.device_type.CPU else 256, device.max_work_group_size
        )
        flush_bytes = min(2 * last_level_cache_bytes, device.max_mem_alloc_size // 4)
        self._flush_quads = max(4096, flush_bytes) // 16
        self._flush_buffer = self._buffers.allocate(self._flush_quads * 16)
        self._flush_keys = itertools.count(1)
        self._flush()  # first access to its pages, first use of its kernel
        self._finish()

    def hold(self, job: Job) -> None:
        """Allocate a kernel's buffers; if they do not fit, each launch config gets its own."""
        with contextlib.suppress(cl.Error):
            self._buffers.hold(job)

    def time(self, job: Job, kernel: cl.Kernel, launch: LaunchConfig) -> dict[str, object]:
        """Return the row of one launch config.

        Raises:
            LostContextError: A launch failed on the device.
            cl.Error: The config could not be launched.
        """
        fills = self._place(job, kernel, launch)
        self._fill(fills)
        self._buffers.await_cleared(job, launch)
        rewritten = [one for one in fills if one.is_written] if job.needs_refill else []

        def timed(count: int = 1) -> float:
            self._finish()
            events = [
                cl.enqueue_nd_range_kernel(
                    self._queue, kernel, launch.global_size, launch.local_size
                )
                for _ in range(count)
            ]
            try:
                events[-1].wait()
                return float(events[-1].profile.end - events[0].profile.start) / count
            except cl.Error as error:
                raise LostContextError(str(error)) from error

        def on_fresh_input(count: int = 1) -> float:
            self._fill(rewritten)
            return timed(count)

        rule = self._rule
        first_ns = estimate_ns = timed()
        for _ in range(1, rule.warmups):
            if estimate_ns <= ONE_WARMUP_NS:
                estimate_ns = on_fresh_input()
        if estimate_ns > rule.max_launch_ms * 1e6:
            return {"status": "over_time_budget"}
        count = launches_per_reading(
            estimate_ns, rule, timer_step_ns=self._timer_step_ns, needs_refill=bool(rewritten)
        )
        stop = StopRule(rule, launches_per_reading=count)
        readings = stop.readings
        reason, start_s = None, time.monotonic()
        while reason is None:
            reading_ns = on_fresh_input(count)
            reason = stop.add(reading_ns, wall_s=time.monotonic() - start_s)
        if statistics.median(readings) > rule.max_launch_ms * 1e6:
            return {"status": "over_time_budget"}
        return {
            "status": "ok",
            **_statistics(readings),
            "first_ns": first_ns,
            "cold_ns": self._cold_readings(rewritten, timed),
            "num_readings": len(readings),
            "launches_per_reading": count,
            "stop_reason": reason.value,
        }

    def _cold_readings(self, rewritten: Sequence[_Fill], timed: Callable[[], float]) -> list[float]:
        """Time launches that find none of their data in the cache."""
        cold: list[float] = []
        budget_ns = self._rule.sample_budget_ms * 1e6
        while len(cold) < self._rule.cold_readings and sum(cold) < budget_ns:
            self._fill(rewritten)
            self._flush()
            cold.append(timed())
        return cold

    def _place(self, job: Job, kernel: cl.Kernel, launch: LaunchConfig) -> list[_Fill]:
        """Set the arguments, and return the fills of the buffers."""
        fills: list[_Fill] = []
        for argument, given in zip(job.arguments, launch.args, strict=True):
            if argument.kind is ArgumentKind.SCALAR:
                assert given.value is not None, "a scalar has a value"
                set_scalar(kernel, argument.position, pack_scalar(argument, given.value))
                continue
            if argument.kind is ArgumentKind.LOCAL_BUFFER:
                local_bytes = max(1, (given.elements or 0) * argument.element_bytes)
                local = cl.LocalMemory(local_bytes)
                kernel.set_arg(argument.position, local)  # type: ignore[arg-type]
                continue
            buffer = self._buffer(argument, given)
            kernel.set_arg(argument.position, buffer)
            is_written = argument.access in (Access.WRITE, Access.READ_WRITE)
            specs = fill_specs(
                argument, elements=given.elements or 0, seed=launch.seed, contents=given.contents
            )
            for spec in specs:
                place = spec.place
                arguments = (
                    buffer,
                    np.uint64(spec.num_scalars),
                    np.uint32(spec.key),
                    np.uint64(spec.contents.limit if spec.contents else 0),
                    # Without a place: the number of zeros that follow.
                    *map(np.uint64, (place.offset, place.stride, place.count) if place else (0,)),
                )
                fills.append(
                    _Fill(
                        kernel=self._kernel(spec.kernel_name, arguments),
                        arguments=arguments,
                        num_items=spec.num_scalars,
                        is_written=is_written,
                    )
                )
        return fills

    def _buffer(self, argument: Argument, given: LaunchArgument) -> cl.Buffer:
        """Return an argument's buffer, with zeroed padding after the part that will be filled."""
        buffer, may_be_stale = self._buffers.take(argument, given)
        if may_be_stale and argument.kind is not ArgumentKind.CONSTANT_BUFFER:
            start = allocated_bytes(argument, given) - GUARD_BYTES
            arguments = (buffer, np.uint64(start), np.uint64(GUARD_BYTES), np.uint32(0))
            kernel = self._kernel("set_bytes", arguments)
            kernel.set_args(*arguments)
            self._enqueue(kernel, GUARD_BYTES // _SET_BYTES_AT_ONCE)
        return buffer

    def _kernel(self, name: str, arguments: Sequence[Any]) -> cl.Kernel:
        """Return one of LLMPerf's fill kernels with fixed argument types.

        Without fixed types ``set_args`` would infer each scalar's type at each call, in 15 us.
        """
        if name not in self._kernels:
            kernel = self._kernels[name] = cl.Kernel(self._own, name)
            kernel.set_scalar_arg_dtypes(
                [None if isinstance(one, cl.Buffer) else one.dtype for one in arguments]
            )
        return self._kernels[name]

    def _fill(self, fills: Sequence[_Fill]) -> None:
        for one in fills:
            if one.num_items:
                one.kernel.set_args(*one.arguments)
                self._enqueue(one.kernel, one.num_items)

    def _flush(self) -> None:
        arguments = (
            self._flush_buffer,
            np.uint64(self._flush_quads),
            np.uint32(next(self._flush_keys)),
        )
        kernel = self._kernel("flush", arguments)
        kernel.set_args(*arguments)
        self._enqueue(kernel, self._flush_quads)

    def _enqueue(self, kernel: cl.Kernel, num_items: int) -> None:
        total = math.ceil(num_items / self._local) * self._local
        self._is_idle = False
        cl.enqueue_nd_range_kernel(self._queue, kernel, (total,), (self._local,))

    def _finish(self) -> None:
        """Wait for the fills, because a launch queued behind other work looks shorter."""
        if self._is_idle:
            return
        try:
            self._queue.finish()
        except cl.Error as error:
            raise LostContextError(str(error)) from error
        self._is_idle = True


def main(arguments: Sequence[str]) -> int:
    """Time the launch configs that the log does not have; return the exit code."""
    work_path, log_path = map(Path, arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    work = read_work(work_path)
    done = begun_items(read_log(log_path))
    loop = PlainLoop(
        DeviceRef(**work.device_ref),
        TimingConfig(**work.timing).rule(),
        timer_step_ns=work.timer_step_ns,
        last_level_cache_bytes=work.last_level_cache_bytes,
        buffers=os.environ.get(BUFFERS_VARIABLE, BUFFER_RULES[0]),
    )
    is_bound = os.environ.get(BOUND_VARIABLE) == "1"
    processors = for_launches(os.sched_getaffinity(0)) if is_bound else ()
    with PartLog(log_path) as log, launching_from(next(iter(processors), None)):
        log.ready()
        for job in work.jobs:
            if job.kernel_id in done:
                continue
            log.begin(job.kernel_id)
            try:
                _time_job(loop, job, log)
            except LostContextError as error:
                sys.stderr.write(f"{job.name}: {error}\n")
                return EXIT_LOST_CONTEXT
    return 0


def _time_job(loop: PlainLoop, job: Job, log: PartLog) -> None:
    try:
        program = cl.Program(loop.context, job.source).build(options=shlex.split(job.build_options))
        kernel = cl.Kernel(program, job.name)
    except cl.Error as error:
        for launch in job.launches:
            log.write(_row(job, launch, {"status": "build_error", "detail": str(error)[:500]}))
        return
    loop.hold(job)
    for launch in job.launches:
        try:
            row = loop.time(job, kernel, launch)
        except cl.Error as error:
            row = {"status": "launch_error", "detail": str(error)[:500]}
        except LostContextError as error:
            lost = {"status": "device_fault", "detail": str(error)[:500]}
            log.write(_row(job, launch, lost))
            raise
        log.write(_row(job, launch, row))


def _row(job: Job, launch: LaunchConfig, outcome: Mapping[str, object]) -> dict[str, object]:
    return {"kernel_id": job.kernel_id, "sample_id": launch.sample_id, **outcome}


def _statistics(readings: Sequence[float]) -> dict[str, float]:
    lower = upper = readings[0]
    if len(readings) > 1:
        lower, _, upper = statistics.quantiles(readings, n=4, method="inclusive")
    return {
        "median_ns": statistics.median(readings),
        "min_ns": min(readings),
        "iqr_ns": upper - lower,
        "mean_ns": statistics.fmean(readings),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
