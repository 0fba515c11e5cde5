"""A compile child without a compiler, for the pool's tests: it builds, and ends where it is told to.

``python -m tests.integration.stub_compile_child DESCRIPTOR PARENT_PID WHERE``
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from workers.channel import Channel, Compiled, CompileJob, CompilerReady
from workers.child_main import serve
from workers.kernel_resources import ended_after


def main(channel: Channel, where: str) -> None:
    """Serve jobs; ``where``: ``build``, ``resources``, ``hang``, ``bug``, ``both`` or empty."""
    channel.send(CompilerReady())
    while True:
        job = channel.receive()
        assert isinstance(job, CompileJob)
        asked = job.resources_limit_s is not None
        if where == "build" or (where == "both" and not asked):
            os.kill(os.getpid(), signal.SIGKILL)
        Path(job.binary_path).write_bytes(b"built")
        if job.resources_limit_s is not None:
            channel.send(CompilerReady())
            with ended_after(job.resources_limit_s):
                second_compiler(where)
        channel.send(Compiled(options="", log="", seconds=0.5, no_resources="a stub knows none"))


def second_compiler(where: str) -> None:
    """Fail as a library of C++ may."""
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
