"""The compile child: builds kernels one after another; its parent kills it when one hangs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from workers.channel import Channel, Compiled, CompileFailed, CompileJob, CompilerReady
from workers.child_main import bound_memory, serve
from workers.device.find import open_compiler
from workers.device.interface import DeviceFailure, DeviceRef

_MAX_BYTES = 4 * 2**30
"""Of address space, on CPU devices: a source can make a compiler unfold macros until the machine has no memory left."""


def main(channel: Channel, argument: str) -> None:
    """Serve ``CompileJob``s on ``channel`` until it closes; ``argument`` is the DeviceRef as JSON."""
    ref = DeviceRef(**json.loads(argument))
    if not ref.selector.startswith("cuda"):
        bound_memory(_MAX_BYTES)
    compiler = open_compiler(ref)
    channel.send(CompilerReady())
    while True:
        job = channel.receive()
        assert isinstance(job, CompileJob), job
        started_s = time.monotonic()
        try:
            program = compiler.compile(job.kernel)
        except DeviceFailure as error:
            channel.send(CompileFailed(failure=error.failure, seconds=time.monotonic() - started_s))
            continue
        Path(job.binary_path).write_bytes(program.binary)
        channel.send(Compiled(options=program.options, log=program.log, seconds=program.seconds))


if __name__ == "__main__":
    serve(main)
