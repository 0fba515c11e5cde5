"""The compile child: builds kernels one after another; its parent kills it when one hangs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from workers.channel import Channel, Compiled, CompileFailed, CompileJob, CompilerReady
from workers.child_main import serve
from workers.device.find import open_compiler
from workers.device.interface import DeviceFailure, DeviceRef


def main(channel: Channel, argument: str) -> None:
    """Serve ``CompileJob``s on ``channel`` until it closes; ``argument`` is the DeviceRef as JSON."""
    compiler = open_compiler(DeviceRef(**json.loads(argument)))
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
