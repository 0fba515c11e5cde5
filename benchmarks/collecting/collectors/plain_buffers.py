"""The buffers of the plain loop: whose they are, and when they are freed."""

from __future__ import annotations

import pyopencl as cl  # noqa: TID251  (what we are compared with uses it as users do)

from benchmarks.collecting.collectors.jobs import Job, allocated_bytes
from llmperf_common.records import Argument, ArgumentKind, LaunchArgument, LaunchConfig
from workers.device.opencl.freed_memory import CLEARED_BYTES_PER_S, FreedMemory

BUFFER_RULES = ("kernel", "config", "cleared")
"""One set of buffers for each kernel; new ones for each launch config; new ones, and a wait until the last config's are cleared."""


class PlainBuffers:
    """Buffers of one context.

    Args:
        context: where they are.
        max_bytes: most that one may have.
        rule: of ``BUFFER_RULES``.
    """

    def __init__(self, context: cl.Context, *, max_bytes: int, rule: str) -> None:
        if rule not in BUFFER_RULES:
            raise ValueError(f"buffers: {', '.join(BUFFER_RULES)}, not {rule!r}")
        self._context = context
        self._max_bytes = max_bytes
        self._is_of_kernel = rule == "kernel"
        self._held: dict[int, cl.Buffer] = {}
        """Of the kernel in hand, by position."""
        self._freed = FreedMemory(CLEARED_BYTES_PER_S if rule == "cleared" else None)
        self._last_bytes = 0

    def allocate(self, num_bytes: int) -> cl.Buffer:
        """Return a new buffer."""
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, num_bytes)

    def hold(self, job: Job) -> None:
        """Allocate a kernel's buffers in place of the last kernel's, each as large as its largest launch config needs it.

        Raises:
            pyopencl.Error: They cannot be allocated; each config then has its own.
        """
        self._held.clear()
        if not self._is_of_kernel:
            return
        largest: dict[int, int] = {}
        for launch in job.launches:
            for argument, given in _with_memory(job, launch):
                num_bytes = allocated_bytes(argument, given)
                if num_bytes <= self._max_bytes:
                    known = largest.get(argument.position, 0)
                    largest[argument.position] = max(known, num_bytes)
        self._held = {position: self.allocate(size) for position, size in largest.items()}

    def take(self, argument: Argument, given: LaunchArgument) -> tuple[cl.Buffer, bool]:
        """Return an argument's buffer, and whether it may hold what an earlier launch config has left."""
        num_bytes = allocated_bytes(argument, given)
        held = self._held.get(argument.position)
        if held is None or held.size < num_bytes:
            return self.allocate(num_bytes), False
        return held, True

    def await_cleared(self, job: Job, launch: LaunchConfig) -> None:
        """Call it when all buffers of a launch config are set: the last config's are free then. Waits by the rule ``cleared`` only."""
        self._freed.note(self._last_bytes)
        self._freed.await_cleared()
        self._last_bytes = sum(allocated_bytes(*pair) for pair in _with_memory(job, launch))


def _with_memory(job: Job, launch: LaunchConfig) -> list[tuple[Argument, LaunchArgument]]:
    """Return the arguments that have memory of the device."""
    pairs = zip(job.arguments, launch.args, strict=True)
    kinds = (ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER)
    return [(argument, given) for argument, given in pairs if argument.kind in kinds]
