"""The counting child: counts the work of kernels one by one; its parent kills it if it hangs."""

from __future__ import annotations

import json

from llmperf_common.failures import Failure
from workers.device.interface import DeviceFailure, DeviceRef
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.confinement import confine
from workers.sandbox.messages import CompilerReady, Counted, CountJob
from workers.sandbox.processor_time import allow_cpu
from workers.work.counting import count_launches
from workers.work.opening import open_virtual

_KERNELS_PER_CHILD = 100
"""Kernels after which a new child takes over: compilers keep builds in memory and on disk."""


def main(channel: Channel, argument: str) -> None:
    """Serve ``CountJob``s on ``channel`` until it closes or enough were served.

    Args:
        channel: receives jobs, sends results.
        argument: the device's DeviceRef as JSON.
    """
    ref = DeviceRef(**json.loads(argument))
    confine(ref, has_small_buffers=True)
    device = open_virtual(ref)
    channel.send(CompilerReady())
    for _ in range(_KERNELS_PER_CHILD):
        job = channel.receive()
        assert isinstance(job, CountJob), job
        allow_cpu(job.cpu_s)
        num_found = 0
        rest: tuple[Failure, ...] = ()
        is_lost = False
        try:
            for counted in count_launches(
                job.kernel,
                job.configs,
                device,
                without_barriers=job.without_barriers,
                only_ranges=job.only_ranges,
            ):
                # Send each outcome at once: the next config may hang.
                channel.send(
                    Counted(
                        outcomes=(counted.outcome,),
                        ranges=(counted.ranges,),
                        covered=(counted.is_covered,),
                        first=num_found,
                        is_last=False,
                    )
                )
                num_found += 1
        except DeviceFailure as error:
            is_lost = error.sticky
            rest = (error.failure,) * (len(job.configs) - num_found)
        channel.send(Counted(outcomes=rest, first=num_found))
        if is_lost:
            return


if __name__ == "__main__":
    serve(main)
