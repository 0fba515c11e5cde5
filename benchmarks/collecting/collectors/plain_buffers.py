"""The buffers of the plain loop: which launch configs share them, and when they are freed."""

from __future__ import annotations

import pyopencl as cl  # noqa: TID251  (this part uses it as users do)

from benchmarks.collecting.collectors.jobs import Job, allocated_bytes
from llmperf_common.records import Argument, ArgumentKind, LaunchArgument, LaunchConfig
from workers.device.opencl.freed_memory import CLEARED_BYTES_PER_S, FreedMemory

BUFFER_RULES = ("kernel", "config", "cleared")
"""``kernel``: one set of buffers for each kernel. ``config``: new buffers for each launch config.
``cleared``: like ``config``, with a wait until the driver has cleared the last config's buffers."""


class PlainBuffers:
    """Buffers of one context.

    Args:
        context: context of the buffers.
        max_bytes: maximum size of one buffer.
        rule: one of ``BUFFER_RULES``.
    """

    def __init__(self, context: cl.Context, *, max_bytes: int, rule: str) -> None:
        if rule not in BUFFER_RULES:
            raise ValueError(f"buffers: {', '.join(BUFFER_RULES)}, not {rule!r}")
        self._context = context
        self._max_bytes = max_bytes
        self._is_of_kernel = rule == "kernel"
        self._held: dict[int, cl.Buffer] = {}
        """The present kernel's buffers by argument position."""
        self._freed = FreedMemory(CLEARED_BYTES_PER_S if rule == "cleared" else None)
        self._last_bytes = 0

    def allocate(self, num_bytes: int) -> cl.Buffer:
        """Return a new buffer."""
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, num_bytes)

    def hold(self, job: Job) -> None:
        """Replace the last kernel's buffers by this kernel's, of the sizes of the largest configs.

        Raises:
            pyopencl.Error: The buffers cannot be allocated; each config then gets its own.
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
        """Return an argument's buffer, and whether it may hold data of an earlier launch config."""
        num_bytes = allocated_bytes(argument, given)
        held = self._held.get(argument.position)
        if held is None or held.size < num_bytes:
            return self.allocate(num_bytes), False
        return held, True

    def await_cleared(self, job: Job, launch: LaunchConfig) -> None:
        """With the rule ``cleared``, wait until the last config's buffers are cleared.

        Must be called when all buffers of a launch config are set, because the last config's
        buffers are freed then.
        """
        self._freed.note(self._last_bytes)
        self._freed.await_cleared()
        self._last_bytes = sum(allocated_bytes(*pair) for pair in _with_memory(job, launch))


def _with_memory(job: Job, launch: LaunchConfig) -> list[tuple[Argument, LaunchArgument]]:
    """Return the arguments that have device memory."""
    pairs = zip(job.arguments, launch.args, strict=True)
    kinds = (ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER)
    return [(argument, given) for argument, given in pairs if argument.kind in kinds]
