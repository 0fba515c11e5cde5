"""The tracing child: traces launches, one after another; its parent kills it when one hangs."""

from __future__ import annotations

import json

from workers.device.interface import DeviceFailure, DeviceRef
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.confinement import confine
from workers.sandbox.messages import CompilerReady, Traced, TraceJob
from workers.sandbox.processor_time import allow_cpu
from workers.work.opening import open_virtual
from workers.work.tracing import trace_accesses


def main(channel: Channel, argument: str) -> None:
    """Serve ``TraceJob``s on ``channel`` until it closes; ``argument`` is the DeviceRef as JSON."""
    ref = DeviceRef(**json.loads(argument))
    confine(ref)
    device = open_virtual(ref)
    channel.send(CompilerReady())
    while True:
        job = channel.receive()
        assert isinstance(job, TraceJob), job
        allow_cpu(job.cpu_s)
        try:
            found = trace_accesses(
                job.kernel, job.config, device, without_barriers=job.without_barriers
            )
        except DeviceFailure as error:
            channel.send(Traced(outcome=error.failure))
            return
        channel.send(Traced(outcome=found))


if __name__ == "__main__":
    serve(main)
