"""A compile child without a compiler, for the pool's tests: it builds, and ends where WHERE says.

``python -m tests.support.processes.stub_compile_child DESCRIPTOR PARENT_PID WHERE``
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from llmperf_common.builds import KernelResources
from workers.device.cuda.kernel_resources import ended_after
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.messages import Compiled, CompileJob, CompilerReady

RESOURCES = KernelResources(
    registers=7, spill_bytes=None, local_bytes=0, shared_bytes=0, max_work_group_size=256,
    occupancy=None, occupancy_work_group_size=256, occupancy_limits=(), seconds=0.1,
)  # fmt: skip


def main(channel: Channel, where: str) -> None:
    """Serve jobs; ``where`` is empty or names a fault.  The faults are ``killed``, ``killed once``,
    ``build``, ``resources``, ``hang``, ``bug``, ``both`` and ``all but KERNEL``."""
    channel.send(CompilerReady())
    while True:
        job = channel.receive()
        assert isinstance(job, CompileJob)
        mark = Path(f"{job.binary_path}.killed")
        asked = job.resources_limit_s is not None
        if where == "build" or (where == "both" and not asked):
            os.kill(os.getpid(), signal.SIGSEGV)
        if where == "killed" or (where == "killed once" and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        Path(job.binary_path).write_bytes(b"built")
        resources = None
        if job.resources_limit_s is not None:
            channel.send(CompilerReady())
            with ended_after(job.resources_limit_s):
                second_compiler(where)
            if where == "killed once":
                resources = RESOURCES
            if where.startswith("all but "):
                if job.kernel.name != where.removeprefix("all but "):
                    os.kill(os.getpid(), signal.SIGSEGV)
                resources = RESOURCES
        channel.send(
            Compiled(
                options="",
                log="",
                seconds=0.5,
                resources=resources,
                no_resources="a stub knows none",
            )
        )


def second_compiler(where: str) -> None:
    """Fail as a C++ library may fail."""
    if where in ("resources", "both"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if where == "hang":
        ctypes.PyDLL(None).sleep(
            60
        )  # holds the interpreter's lock: no thread and no handler of Python's runs
    if where == "bug":
        raise KeyError("a mistake of ours")


if __name__ == "__main__":
    serve(main)
