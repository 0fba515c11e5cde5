"""The counting child: counts the work of kernels one by one; its parent kills it if it hangs."""

from __future__ import annotations

import json

from llmperf_common.failures import Failure
from llmperf_common.features.work import Work
from workers.device.interface import DeviceFailure, DeviceRef
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.messages import CompilerReady, Counted, CountJob
from workers.sandbox.processor_time import allow_cpu
from workers.work.counting import count_kernel
from workers.work.opening import open_virtual

_KERNELS_PER_CHILD = 100
"""Kernels after which a new child takes over: compilers keep builds in memory and on disk."""


def main(channel: Channel, argument: str) -> None:
    """Serve ``CountJob``s on ``channel`` until it closes or enough were served.

    Args:
        channel: receives jobs, sends results.
        argument: the device's DeviceRef as JSON.
    """
    device = open_virtual(DeviceRef(**json.loads(argument)))
    channel.send(CompilerReady())
    for _ in range(_KERNELS_PER_CHILD):
        job = channel.receive()
        assert isinstance(job, CountJob), job
        allow_cpu(job.cpu_s)
        found: list[Work | Failure] = []
        is_lost = False
        try:
            for outcome in count_kernel(
                job.kernel, job.configs, device, without_barriers=job.without_barriers
            ):
                found.append(outcome)
                # Send each outcome at once: the next config may hang.
                channel.send(Counted(outcomes=tuple(found), is_last=False))
        except DeviceFailure as error:
            is_lost = error.sticky
            found += [error.failure] * (len(job.configs) - len(found))
        channel.send(Counted(outcomes=tuple(found)))
        if is_lost:
            return


if __name__ == "__main__":
    serve(main)
