"""Run virtual launches on an OpenCL CPU device: a counted kernel runs a sample of the launch.

Owns buffers and queue. Runs in a child process that can be killed, because a compiler can hang, and
on PoCL a barrier that not all work-items reach ends the process.
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
from workers.device.opencl.copy_program import build_copy
from workers.device.opencl.device import opened_queue
from workers.device.opencl.errors import cl_errors
from workers.plan.inputs import pack_scalar
from workers.work.counted_copy import (
    KERNEL_NAME,
    MET_SETS,
    MET_WAYS,
    NUM_TURNS,
    RANGES_AT,
    SLACK_BYTES,
    TOUCHED_LOG,
    TOUCHED_TABLE,
    WATCHED_WARPS,
    CountedCopy,
)
from workers.work.description import (
    STORE_BLOCKS,
    STORE_BYTES,
    described,
    local_bytes,
    watched_groups,
    with_units,
)
from workers.work.reuse import touched_bytes
from workers.work.sampling.units import Unit

_LAST_EPOCH = 2**16 - 1
_GROUPS_PER_WAIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCounts:
    """The counts of some units (warps or work-groups, ``units.py``) of one launch.

    ``rows``: shape (work-items, blocks), how often each work-item ran each block. ``seen``: shape
    (warps, sites, iterations): the low 16 bits are sectors (for atomic operations, addresses), the
    high 16 bits lines; one warp for each unit, or the watched warps of each group. ``met``: shape
    (units, m, 2), an address in global memory and the number of atomic operations on it, 0 for an
    empty row; m is 0 without such operations. ``flags``: 1 if loops were cut off; 2 if an array of
    fixed size was indexed beyond its end; 4 if an access used a pointer that points to neither an
    argument nor a variable. ``touched``: in a watched run, the bytes of global memory that each
    work-group touches, in the order of ``watched_groups``. ``ranges``: shape (pointer arguments,
    2), bytes: a range that holds all accesses through the argument, relative to its start.
    """

    rows: npt.NDArray[np.uint32]
    seen: npt.NDArray[np.uint32]
    met: npt.NDArray[np.uint64]
    turns: int
    flags: int
    touched: npt.NDArray[np.float64]
    ranges: npt.NDArray[np.int64]


class OpenclVirtualDevice:
    """A context on the device ``ref``; raises LookupError if the device cannot be opened."""

    def __init__(self, ref: DeviceRef) -> None:
        self._cl_device, self._context, self._queue = opened_queue(ref)

    def load(self, kernel: Kernel, copy: CountedCopy) -> VirtualKernel:
        """Build a counted copy and return it with its buffers; raises DeviceFailure."""
        assert kernel.signature is not None, "only kernels with a signature are counted"
        arguments = kernel.signature.arguments
        words = [word for word in kernel.build_options.split() if word.startswith("-cl-std=")]
        words.append(f"-DLP_DOUBLES={int(any(_has_doubles(one) for one in arguments))}")
        words.append(f"-DLP_LEAVES={int(any(one.leaves for one in arguments))}")
        if not copy.is_optimised:
            words.append("-cl-opt-disable")
        program = build_copy(self._context, self._cl_device, copy.source, " ".join(words))
        with cl_errors(Stage.PROBE, waiting=True):
            return VirtualKernel(self._context, self._queue, program, arguments, copy)

    def close(self) -> None:
        """Wait for the queue and release the context."""
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
        self._touched = self._new(16 * (1 + TOUCHED_TABLE + TOUCHED_LOG))
        self._words = np.zeros(0, np.uint64)
        self._written: list[cl.Event] = []
        self._sized: dict[str, cl.Buffer] = {}

    @property
    def max_lanes(self) -> int:
        """Largest work-group that can run with all its work-items together, as barriers require."""
        return self._max_lanes

    def prepare(self, config: LaunchConfig) -> None:
        """Set the scalars and local arguments of ``config``; raises DeviceFailure."""
        self._words = described(config, self._arguments, self._copy)
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

    def run(
        self,
        config: LaunchConfig,
        units: Sequence[Unit],
        *,
        most_turns: int,
        is_watched: bool = False,
    ) -> RawCounts:
        """Run units of the prepared ``config``; cut loops off after ``most_turns`` iterations.

        A watched run records the bytes that work-groups touch instead of ``seen`` and ``met``; the
        units of a group must be adjacent.

        Raises:
            DeviceFailure: The launch failed.
        """
        with cl_errors(Stage.PROBE, waiting=True):
            return self._run(config, units, most_turns, is_watched=is_watched)

    def trace(
        self,
        config: LaunchConfig,
        units: Sequence[Unit],
        notes: npt.NDArray[np.uint64],
        *,
        most_turns: int,
    ) -> tuple[npt.NDArray[np.uint64], RawCounts]:
        """Run units of a traced copy; return ``notes`` (``traced.cl``) as the run has left them.

        Raises:
            DeviceFailure: The launch failed.
        """
        with cl_errors(Stage.PROBE, waiting=True):
            notes_at = self._filled("notes", notes)
            run = self._run(config, units, most_turns, is_watched=True, notes_at=notes_at)
            found = np.empty_like(notes)
            cl.enqueue_copy(self._queue, found, notes_at, is_blocking=True)
            return found, run

    def _run(
        self,
        config: LaunchConfig,
        units: Sequence[Unit],
        most_turns: int,
        *,
        is_watched: bool,
        notes_at: cl.Buffer | None = None,
    ) -> RawCounts:
        copy, queue, kernel = self._copy, self._queue, self._cl_kernel
        if self._epoch + len(units) > _LAST_EPOCH:
            self._clear(self._kept)
            self._epoch = 1
        words = with_units(
            self._words, units, epoch=self._epoch, most_turns=most_turns, is_watched=is_watched
        )
        self._epoch += len(units)
        items = sum(unit.num_lanes for unit in units)
        rows = np.zeros((items, len(copy.blocks)), np.uint32)
        num_warps = 0 if is_watched else len(units) * self._warps
        seen = np.zeros((num_warps, copy.num_seen, NUM_TURNS), np.uint32)
        has_met = copy.has_atomics and not is_watched
        met = np.zeros((len(units), MET_SETS * MET_WAYS if has_met else 0, 2), np.uint64)
        notes_touched = is_watched and notes_at is None
        if notes_touched:
            self._clear(self._touched, 16 * (1 + TOUCHED_TABLE))
        out = np.zeros(RANGES_AT + 2 * len(copy.positions), np.uint64)
        self._written.clear()  # host copies for the last run, which has ended
        described_at = self._filled("in", words)
        rows_at, seen_at = self._zeroed("rows", rows), self._zeroed("seen", seen)
        out_at = self._filled("out", out)
        met_at = self._zeroed("met", met)
        first = len(self._arguments)
        touched_at = self._touched if notes_at is None else notes_at
        buffers = (
            described_at, out_at, rows_at, self._kept, seen_at, self._sets, touched_at, met_at
        )  # fmt: skip
        for number, buffer in enumerate(buffers):
            kernel.set_arg(first + number, buffer)
        unit_at = first + len(buffers)
        if copy.is_grouped:
            for number in range(len(units)):
                kernel.set_arg(unit_at, np.uint32(number))
                cl.enqueue_nd_range_kernel(queue, kernel, config.local_size, config.local_size)
                if number % _GROUPS_PER_WAIT == 0:
                    queue.finish()
        else:
            kernel.set_arg(unit_at, np.uint32(0))
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        # The queue is in order, so all copies have ended when the last one has.
        read = [
            cl.enqueue_copy(queue, data, buffer, is_blocking=False)
            for data, buffer in ((rows, rows_at), (seen, seen_at), (met, met_at), (out, out_at))
            if data.size
        ]
        read[-1].wait()
        return RawCounts(
            rows=rows,
            seen=seen,
            met=met,
            turns=int(out[0]),
            flags=int(out[1]),
            touched=self._touched_bytes(len(watched_groups(units)))
            if notes_touched
            else np.zeros(0),
            ranges=out[RANGES_AT:].view(np.int64).reshape(-1, 2),
        )

    def _touched_bytes(self, num_groups: int) -> npt.NDArray[np.float64]:
        """Return the bytes that each group of the last run touches."""
        kept = np.zeros((1 + TOUCHED_TABLE, 2), np.uint64)
        cl.enqueue_copy(self._queue, kept, self._touched, is_blocking=True)
        num_logged, left_out = (int(one) for one in kept[0])
        if num_logged:
            log = np.zeros((num_logged, 2), np.uint64)
            at = kept.nbytes
            cl.enqueue_copy(self._queue, log, self._touched, is_blocking=True, src_offset=at)
            kept = np.concatenate((kept, log))
        return touched_bytes(kept[1:], left_out, num_groups)

    def release(self) -> None:
        """Release the buffers."""
        for buffer in (*self._buffers, *self._sized.values()):
            buffer.release()

    def _new(self, num_bytes: int) -> cl.Buffer:
        buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, num_bytes)
        self._buffers.append(buffer)
        return buffer

    def _clear(self, buffer: cl.Buffer, num_bytes: int | None = None) -> None:
        size = buffer.size if num_bytes is None else num_bytes
        cl.enqueue_fill_buffer(self._queue, buffer, np.zeros(1, np.uint32), 0, size)

    def _sized_for(self, name: str, num_bytes: int) -> cl.Buffer:
        """Return a buffer of at least ``num_bytes``, which is kept for the next run."""
        known = self._sized.get(name)
        if known is None or known.size < num_bytes:
            if known is not None:
                known.release()
            known = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(4096, num_bytes))
            self._sized[name] = known
        return known

    def _zeroed(self, name: str, data: npt.NDArray[Any]) -> cl.Buffer:
        """Return a zeroed buffer with as many bytes as ``data``."""
        buffer = self._sized_for(name, data.nbytes)
        if data.nbytes:
            self._clear(buffer, data.nbytes)
        return buffer

    def _filled(self, name: str, data: npt.NDArray[Any]) -> cl.Buffer:
        buffer = self._sized_for(name, data.nbytes)
        self._written.append(cl.enqueue_copy(self._queue, buffer, data, is_blocking=False))
        return buffer
