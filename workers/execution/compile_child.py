"""The compile child: builds kernels one after another; if a build hangs, its parent kills it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from llmperf_common.builds import KernelResources
from workers.device.cuda.kernel_resources import ResourceReader
from workers.device.interface import Compiler, DeviceFailure, DeviceRef
from workers.discovery.opening import open_compiler
from workers.sandbox.address_space import bound_growth
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.messages import Compiled, CompileFailed, CompileJob, CompilerReady

_MAX_BYTES = 4 * 2**30
"""Bytes of address space of a compile child on CPU devices. Without this limit, a source's macros
can expand until the host has no memory left."""


def main(channel: Channel, argument: str) -> None:
    """Serve ``CompileJob``s on ``channel`` until it closes; ``argument`` is a DeviceRef as JSON."""
    ref = DeviceRef(**json.loads(argument))
    if not ref.selector.startswith("cuda"):
        bound_growth(_MAX_BYTES)
    compiler = open_compiler(ref)
    channel.send(CompilerReady())
    with ResourceReader(ref) as reader:
        while True:
            job = channel.receive()
            assert isinstance(job, CompileJob), job
            _compile(channel, compiler, reader, job)


def _compile(channel: Channel, compiler: Compiler, reader: ResourceReader, job: CompileJob) -> None:
    started_s = time.monotonic()
    try:
        program = compiler.compile(job.kernel)
    except DeviceFailure as error:
        channel.send(CompileFailed(failure=error.failure, seconds=time.monotonic() - started_s))
        return
    Path(job.binary_path).write_bytes(program.binary)  # shows the parent that the build succeeded
    found: KernelResources | str = ""
    if job.resources_limit_s is not None:
        channel.send(CompilerReady())  # reading the resources has its own time limit
        found = reader.read(job.kernel, program.binary, limit_s=job.resources_limit_s)
    channel.send(
        Compiled(
            options=program.options,
            log=program.log,
            seconds=program.seconds,
            resources=found if isinstance(found, KernelResources) else None,
            no_resources=found if isinstance(found, str) else "",
        )
    )


if __name__ == "__main__":
    serve(main)
