"""Part (a), the paper's procedure: this process times one launch config and ends.

``python -m benchmarks.collecting.collectors.fresh_process < WORK.json``

The process builds the kernel, allocates its buffers and uploads inputs that numpy made. Then come 2
warm-ups and 5 launches, with all inputs uploaded before each launch. The mean of the launches'
event times goes to stdout as one JSON line. ``input_s`` is the time in which numpy made the inputs.
The parent subtracts ``input_s`` from the process's time, because the times of the other tools do
not include the making of inputs.
"""

from __future__ import annotations

import json
import resource
import shlex
import statistics
import sys
import time
from typing import Any

import pyopencl as cl  # noqa: TID251  (this part uses it as users do)

from benchmarks.collecting.collectors.host_inputs import host_bytes
from benchmarks.collecting.collectors.jobs import Job, work_from_json
from llmperf_common.records import ArgumentKind
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.plan.inputs import pack_scalar

WARMUPS = 2
LAUNCHES = 5


def main() -> int:
    """Time the launch config that stdin describes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    work = work_from_json(sys.stdin.read())
    ((job,), ref) = work.jobs, DeviceRef(**work.device_ref)
    print(json.dumps(_time(job, ref)), flush=True)
    return 0


def _time(job: Job, ref: DeviceRef) -> dict[str, object]:
    (launch,) = job.launches
    device = find_cl_device(ref)
    context = cl.Context([device])
    queue = cl.CommandQueue(context, device, cl.command_queue_properties.PROFILING_ENABLE)
    program = cl.Program(context, job.source).build(options=shlex.split(job.build_options))
    kernel = cl.Kernel(program, job.name)
    uploads: list[tuple[cl.Buffer, Any]] = []
    input_s = 0.0
    for argument, given in zip(job.arguments, launch.args, strict=True):
        if argument.kind is ArgumentKind.SCALAR:
            assert given.value is not None, "a scalar has a value"
            kernel.set_arg(argument.position, pack_scalar(argument, given.value))
        elif argument.kind is ArgumentKind.LOCAL_BUFFER:
            local_bytes = max(1, (given.elements or 0) * argument.element_bytes)
            local = cl.LocalMemory(local_bytes)
            kernel.set_arg(argument.position, local)  # type: ignore[arg-type]
        else:
            start_s = time.monotonic()
            contents = host_bytes(argument, given, seed=launch.seed)
            input_s += time.monotonic() - start_s
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, contents.nbytes)
            kernel.set_arg(argument.position, buffer)
            uploads.append((buffer, contents))

    def upload() -> None:
        for buffer, contents in uploads:
            cl.enqueue_copy(queue, buffer, contents)
        queue.finish()

    def launched_ns() -> float:
        event = cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
        event.wait()
        return float(event.profile.end - event.profile.start)

    upload()
    for _ in range(WARMUPS):
        launched_ns()
    times_ns = []
    for _ in range(LAUNCHES):
        upload()
        times_ns.append(launched_ns())
    return {
        "status": "ok",
        "mean_ns": statistics.fmean(times_ns),
        "median_ns": statistics.median(times_ns),
        "num_readings": len(times_ns),
        "input_s": input_s,
    }


if __name__ == "__main__":
    sys.exit(main())
