"""Virtual launches on an OpenCL CPU device: a counted kernel runs a sample of a launch that is not there.

Owns buffers and queue. What is counted and how: ``workers/work``. Lives in a child that may be killed: a compiler can
hang, and a barrier that not all work-items reach ends the process on PoCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Stage
from llmperf_common.records import Argument, ArgumentKind, Kernel, LaunchConfig
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.device.opencl.errors import cl_errors
from workers.device.opencl.session import build_program
from workers.plan.inputs import pack_scalar
from workers.work.counted_copy import (
    KERNEL_NAME,
    NUM_TURNS,
    SLACK_BYTES,
    WATCHED_WARPS,
    CountedCopy,
)
from workers.work.description import (
    STORE_BLOCKS,
    STORE_BYTES,
    described,
    local_bytes,
)
from workers.work.units import Unit

_LAST_EPOCH = 2**16 - 1
_OUT_WORDS = 4
_GROUPS_PER_WAIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCounts:
    """What units of one launch did.

    ``rows``: shape (work-items, blocks), how often each ran each block. ``seen``: shape (warps, sites, turns), sectors
    in the low and lines in the high 16 bits; a warp for each unit, or for each watched warp of each. ``flags``: 1, loops were cut off; 2, an array of fixed size was indexed beyond its end; 4, an access
    through a pointer that comes from no argument and no variable.
    """

    rows: npt.NDArray[np.uint32]
    seen: npt.NDArray[np.uint32]
    turns: int
    flags: int


class OpenclVirtualDevice:
    """A context on the device that ``ref`` names (LookupError if it cannot be opened)."""

    def __init__(self, ref: DeviceRef) -> None:
        self._cl_device = find_cl_device(ref)
        try:
            self._context = cl.Context([self._cl_device])
            self._queue = cl.CommandQueue(self._context)
        except cl.Error as error:
            raise LookupError(f"{ref.name!r} cannot be opened: {error}") from error

    def load(self, kernel: Kernel, copy: CountedCopy) -> VirtualKernel:
        """Build a counted copy. Raises DeviceFailure."""
        assert kernel.signature is not None, "only kernels with a signature are counted"
        arguments = kernel.signature.arguments
        words = [word for word in kernel.build_options.split() if word.startswith("-cl-std=")]
        words.append(f"-DLP_DOUBLES={int(any(_has_doubles(one) for one in arguments))}")
        words.append(f"-DLP_LEAVES={int(any(one.leaves for one in arguments))}")
        if copy.is_grouped:
            # Work-items of a group share counters: no compiler may take their loop for a parallel one.
            words.append("-cl-opt-disable")
        program, _ = build_program(self._context, self._cl_device, copy.source, " ".join(words))
        with cl_errors(Stage.PROBE, waiting=True):
            return VirtualKernel(self._context, self._queue, program, arguments, copy)

    def close(self) -> None:
        """Wait for the queue and let the context go."""
        self._queue.finish()


def _has_doubles(argument: Argument) -> bool:
    return argument.scalar_type == "double" or any(
        leaf.scalar_type == "double" for leaf in argument.leaves
    )


class VirtualKernel:
    """A counted kernel with its buffers."""

    def __init__(
        self,
        context: cl.Context,
        queue: cl.CommandQueue,
        program: cl.Program,
        arguments: Sequence[Argument],
        copy: CountedCopy,
    ) -> None:
        self._context, self._queue = context, queue
        self._cl_kernel = cl.Kernel(program, KERNEL_NAME)
        self._max_lanes = int(
            self._cl_kernel.get_work_group_info(
                cl.kernel_work_group_info.WORK_GROUP_SIZE, context.devices[0]
            )
        )
        self._arguments, self._copy = arguments, copy
        self._epoch = 1
        self._buffers: list[cl.Buffer] = []
        for argument in arguments:
            if argument.kind.is_buffer and argument.kind is not ArgumentKind.LOCAL_BUFFER:
                self._cl_kernel.set_arg(argument.position, self._new(STORE_BYTES + SLACK_BYTES))
        self._kept = self._new(8 * (1 + len(copy.positions) * STORE_BLOCKS))
        self._clear(self._kept)
        warps = WATCHED_WARPS if copy.by_groups else 1
        self._warps = warps
        self._sets = self._new(4 * 64 * warps * copy.num_seen * NUM_TURNS)
        self._sized: dict[str, cl.Buffer] = {}

    @property
    def max_lanes(self) -> int:
        """Most work-items of a group that runs as one."""
        return self._max_lanes

    def prepare(self, config: LaunchConfig) -> None:
        """Put the scalars and local arguments of ``config`` in place. Raises DeviceFailure."""
        given = {one.position: one for one in config.args}
        with cl_errors(Stage.PROBE, waiting=True):
            for argument in self._arguments:
                launched = given[argument.position]
                if argument.kind is ArgumentKind.LOCAL_BUFFER:
                    room = local_bytes(argument, launched.elements or 0) + SLACK_BYTES
                    self._cl_kernel.set_arg(argument.position, cl.LocalMemory(room))  # type: ignore[arg-type]
                elif argument.kind is ArgumentKind.SCALAR:
                    value = launched.value if launched.value is not None else 1
                    self._cl_kernel.set_arg(argument.position, pack_scalar(argument, value))

    def run(self, config: LaunchConfig, units: Sequence[Unit], *, most_turns: int) -> RawCounts:
        """Run units of the prepared ``config``; loops are cut off after so many turns in all. Raises DeviceFailure."""
        with cl_errors(Stage.PROBE, waiting=True):
            return self._run(config, units, most_turns)

    def _run(self, config: LaunchConfig, units: Sequence[Unit], most_turns: int) -> RawCounts:
        copy, queue, kernel = self._copy, self._queue, self._cl_kernel
        if self._epoch + len(units) > _LAST_EPOCH:
            self._clear(self._kept)
            self._epoch = 1
        words = described(
            config, self._arguments, copy, units, epoch=self._epoch, most_turns=most_turns
        )
        self._epoch += len(units)
        items = sum(unit.num_lanes for unit in units)
        rows = np.zeros((items, len(copy.blocks)), np.uint32)
        seen = np.zeros((len(units) * self._warps, copy.num_seen, NUM_TURNS), np.uint32)
        out = np.zeros(_OUT_WORDS, np.uint64)
        described_at = self._filled("in", words)
        rows_at, seen_at = self._sized_for("rows", rows.nbytes), self._filled("seen", seen)
        out_at = self._filled("out", out)
        first = len(self._arguments)
        for number, buffer in enumerate(
            (described_at, out_at, rows_at, self._kept, seen_at, self._sets)
        ):
            kernel.set_arg(first + number, buffer)
        if copy.is_grouped:
            for number in range(len(units)):
                kernel.set_arg(first + 6, np.uint32(number))
                cl.enqueue_nd_range_kernel(queue, kernel, config.local_size, config.local_size)
                if number % _GROUPS_PER_WAIT == 0:
                    queue.finish()
        else:
            kernel.set_arg(first + 6, np.uint32(0))
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, rows, rows_at)
        cl.enqueue_copy(queue, seen, seen_at)
        cl.enqueue_copy(queue, out, out_at, is_blocking=True)
        return RawCounts(rows=rows, seen=seen, turns=int(out[0]), flags=int(out[1]))

    def release(self) -> None:
        """Give the buffers back."""
        for buffer in (*self._buffers, *self._sized.values()):
            buffer.release()

    def _new(self, num_bytes: int) -> cl.Buffer:
        buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, num_bytes)
        self._buffers.append(buffer)
        return buffer

    def _clear(self, buffer: cl.Buffer) -> None:
        cl.enqueue_fill_buffer(self._queue, buffer, np.zeros(1, np.uint64), 0, buffer.size)

    def _sized_for(self, name: str, num_bytes: int) -> cl.Buffer:
        """Return a buffer of at least so many bytes, kept for the next run."""
        known = self._sized.get(name)
        if known is None or known.size < num_bytes:
            if known is not None:
                known.release()
            known = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(4096, num_bytes))
            self._sized[name] = known
        return known

    def _filled(self, name: str, data: npt.NDArray[Any]) -> cl.Buffer:
        buffer = self._sized_for(name, data.nbytes)
        cl.enqueue_copy(self._queue, buffer, data, is_blocking=True)
        return buffer
