"""Launch jobs through the CUDA driver, each launch once, for ``ncu`` to watch.

``python -m benchmarks.device.hardware_counts.launching JOBS.json PROGRESS.jsonl --first N --number
M``

Before and after each launch the program writes a line to PROGRESS: ``sample_id``, ``stage``
(``begun``, ``launched`` or ``failed``), ``note``. The launches come in the order of these lines, so
that ``ncu``'s rows can be matched with them. If the process dies, the lines show in which launch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.collecting.collectors.jobs import Job, read_work
from benchmarks.device.cuda_side import cuda_side
from benchmarks.device.hardware_counts.kernels import bare_kernel
from llmperf_common.records import Kernel, Signature
from workers.device.cuda.driver import CudaContext
from workers.device.cuda.launcher import CudaError
from workers.device.interface import DeviceFailure
from workers.discovery.find import NoDevice, choose
from workers.discovery.opening import open_compiler, open_session


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", type=Path)
    parser.add_argument("progress", type=Path)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    given = parser.parse_args()
    ref = choose("cuda")
    if isinstance(ref, NoDevice):
        raise SystemExit(ref.message())
    with open_session(ref) as session:
        uuid = session.device.device_uuid
    compiler = open_compiler(ref)
    jobs = read_work(given.jobs).jobs[given.first : given.first + given.number]
    with CudaContext(str(uuid)) as context, given.progress.open("a", buffering=1) as progress:
        for job in jobs:
            kernel = kernel_of(job)
            try:
                program = compiler.compile(kernel)
            except DeviceFailure as error:
                for launch in job.launches:
                    progress.write(_line(launch.sample_id, "failed", str(error)))
                continue
            for launch in job.launches:
                progress.write(_line(launch.sample_id, "begun"))
                try:
                    side = cuda_side(context, kernel, program, launch)
                    side.launch.enqueue()
                except CudaError as error:  # such as more than 65,535 work-groups in y
                    progress.write(_line(launch.sample_id, "failed", str(error)))
                    continue
                context.synchronize()  # a kernel that faults ends this process
                progress.write(_line(launch.sample_id, "launched"))


def kernel_of(job: Job) -> Kernel:
    """Return a job's kernel, with the fields that a compiler and a launch need."""
    return bare_kernel(
        kernel_id=job.kernel_id,
        name=job.name,
        source=job.source,
        build_options=job.build_options,
        signature=Signature(
            arguments=job.arguments,
            dims=len(job.launches[0].global_size),
            required_local_size=None,
            static_local_bytes=0,
            static_features={},
        ),
    )


def _line(sample_id: str, stage: str, note: str = "") -> str:
    return json.dumps({"sample_id": sample_id, "stage": stage, "note": note[:300]}) + "\n"


if __name__ == "__main__":
    main()
