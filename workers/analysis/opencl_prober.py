"""Run many small probe launches of instrumented kernels on an OpenCL device.

Owns the probes' buffers and tables. ``workers/analysis/copy`` instruments the kernels. Runs in a
killable child process: an instrumented kernel cannot reach outside its buffers, but a compiler can
crash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyopencl as cl  # noqa: TID251

from llmperf_common.analysis import ContentsRule
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Argument, ArgumentKind, Device, Kernel
from workers.analysis.copy.instrument import HEAD_WORDS, KERNEL_NAME, SLACK_BYTES, row_words
from workers.analysis.copy.rewriter import CONSTANT_BYTES, GLOBAL_BYTES, LOCAL_BYTES
from workers.device.interface import (
    AccessRange,
    DeviceFailure,
    DeviceRef,
    Instrumented,
    ProbeLaunch,
    ProbeRecord,
)
from workers.device.opencl.copy_program import build_copy
from workers.device.opencl.device import describe, opened_queue
from workers.device.opencl.errors import cl_errors
from workers.plan.inputs import SCALAR_TYPES, pack_scalar, stream_key

_BIAS = 2**43
_EXCEEDED, _OVERFLOW, _LOST = 1, 2, 4
_LAUNCHES_PER_WAIT = 16


class OpenclProber:
    """A context for probes on the device ``ref``; raises LookupError if opening fails."""

    def __init__(self, ref: DeviceRef) -> None:
        self._cl_device, self._context, self._queue = opened_queue(ref)
        self._device = describe(self._cl_device)
        self._current: tuple[tuple[str, str], _LoadedProbe] | None = None

    @property
    def device(self) -> Device:
        """The device's record."""
        return self._device

    def run(
        self, kernel: Kernel, instrumented: Instrumented, launches: Sequence[ProbeLaunch]
    ) -> tuple[ProbeRecord | None, ...]:
        """Build the instrumented source and run ``launches`` in order.

        Raises:
            DeviceFailure: The source does not build, or a launch failed.
        """
        loaded = self._loaded(kernel, instrumented)
        with cl_errors(Stage.PROBE, waiting=True):
            return loaded.run(launches)

    def _loaded(self, kernel: Kernel, instrumented: Instrumented) -> _LoadedProbe:
        """Return the kernel ready to be probed; the last probed kernel is kept with its buffers."""
        key = (kernel.kernel_id, instrumented.source)
        if self._current is None or self._current[0] != key:
            if self._current is not None:
                self._current[1].release()
                self._current = None
            program = self._built(instrumented.source, kernel.build_options)
            with cl_errors(Stage.PROBE, waiting=True):
                loaded = _LoadedProbe(self._context, self._queue, program, kernel, instrumented)
            self._current = (key, loaded)
        return self._current[1]

    def _built(self, source: str, build_options: str) -> cl.Program:
        # The text is already preprocessed, so only the language standard still matters.
        words = [word for word in build_options.split() if word.startswith("-cl-std=")]
        # PoCL compiles for each local size; without optimisation this takes a fifth of the time.
        options = " ".join([*words, "-cl-opt-disable"])
        return build_copy(self._context, self._cl_device, source, options)

    def close(self) -> None:
        """Wait for the queue and release the context."""
        self._current = None
        self._queue.finish()


class _LoadedProbe:
    def __init__(
        self,
        context: cl.Context,
        queue: cl.CommandQueue,
        program: cl.Program,
        kernel: Kernel,
        instrumented: Instrumented,
    ) -> None:
        assert kernel.signature is not None, "only kernels with a signature are probed"
        self._context, self._queue = context, queue
        self._cl_kernel = cl.Kernel(program, KERNEL_NAME)
        self._max_local_items = int(
            self._cl_kernel.get_work_group_info(
                cl.kernel_work_group_info.WORK_GROUP_SIZE, context.devices[0]
            )
        )
        self._arguments = kernel.signature.arguments
        self._positions = instrumented.positions
        self._words = row_words(len(self._positions)) + SLACK_BYTES // 8
        self._buffers: dict[int, cl.Buffer] = {}
        self._filled: dict[int, object] = {}
        self._masters: dict[int, tuple[cl.Buffer, npt.NDArray[np.uint8]]] = {}
        """Copies of contents on the device, by the ``id()`` of the contents, which are kept as
        long."""
        for argument in self._arguments:
            self._place(argument)

    def run(self, launches: Sequence[ProbeLaunch]) -> tuple[ProbeRecord | None, ...]:
        table = np.zeros(len(launches) * self._words, dtype=np.uint64)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        recorded = cl.Buffer(self._context, flags, hostbuf=table)
        last = len(self._arguments)
        self._cl_kernel.set_arg(last, recorded)
        for number, launch in enumerate(launches):
            if math.prod(launch.local_size) > self._max_local_items:
                continue
            self._fill(launch)
            for argument in self._arguments:
                if argument.kind is ArgumentKind.SCALAR:
                    value = launch.scalars.get(argument.position, 1)
                    self._cl_kernel.set_arg(argument.position, pack_scalar(argument, value))
            self._cl_kernel.set_arg(last + 1, np.uint64(number * self._words))
            self._cl_kernel.set_arg(last + 2, np.uint64(launch.max_turns))
            cl.enqueue_nd_range_kernel(
                self._queue, self._cl_kernel, launch.global_size, launch.local_size
            )
            if number % _LAUNCHES_PER_WAIT == 0:
                self._queue.finish()
        cl.enqueue_copy(self._queue, table, recorded)
        recorded.release()
        rows = table.reshape(len(launches), self._words)
        return tuple(
            self._record(row) if math.prod(launch.local_size) <= self._max_local_items else None
            for launch, row in zip(launches, rows, strict=True)
        )

    def release(self) -> None:
        for buffer in self._buffers.values():
            buffer.release()
        self._release_masters()

    def _place(self, argument: Argument) -> None:
        if argument.kind is ArgumentKind.LOCAL_BUFFER:
            local = cl.LocalMemory(LOCAL_BYTES + SLACK_BYTES)
            self._cl_kernel.set_arg(argument.position, local)  # type: ignore[arg-type]
        elif argument.kind.is_buffer:
            is_constant = argument.kind is ArgumentKind.CONSTANT_BUFFER
            num_bytes = (CONSTANT_BYTES if is_constant else GLOBAL_BYTES) + SLACK_BYTES
            self._buffers[argument.position] = cl.Buffer(
                self._context, cl.mem_flags.READ_WRITE, num_bytes
            )
            self._cl_kernel.set_arg(argument.position, self._buffers[argument.position])

    def _fill(self, launch: ProbeLaunch) -> None:
        """Fill every buffer, so that writes of an earlier launch do not influence this one."""
        for argument in self._arguments:
            buffer = self._buffers.get(argument.position)
            if buffer is None:
                continue
            limit = launch.limits.get(argument.position, launch.default_limit)
            rule = launch.rules.get(argument.position)
            data = probe_contents(
                argument,
                int(buffer.size),
                seed=launch.seed,
                limit=limit,
                spread=launch.spread,
                rule=rule,
            )
            wanted = (launch.seed, limit, launch.spread, rule)
            if self._filled.get(argument.position) == wanted and argument.access.value == "read":
                continue
            self._copy(data, buffer)
            self._filled[argument.position] = wanted

    def _copy(self, data: npt.NDArray[np.uint8], buffer: cl.Buffer) -> None:
        """Copy contents to a buffer from a buffer; a copy from host memory takes six times as long.

        The copies of contents stay until the kernel is released. Their number is limited.
        """
        known = self._masters.get(id(data))
        if known is None:
            if len(self._masters) == _MOST_CONTENTS:
                self._release_masters()
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
            known = cl.Buffer(self._context, flags, hostbuf=data), data
            self._masters[id(data)] = known
        cl.enqueue_copy(self._queue, buffer, known[0], byte_count=data.nbytes)

    def _release_masters(self) -> None:
        for master, _ in self._masters.values():
            master.release()
        self._masters.clear()

    def _record(self, row: npt.NDArray[np.uint64]) -> ProbeRecord:
        flags = int(row[1])
        if flags & _LOST:
            detail = "an access through a pointer that comes from no argument and no variable"
            raise DeviceFailure(
                Failure(code=FailureCode.UNSUPPORTED, stage=Stage.PROBE, detail=detail)
            )
        access_ranges = []
        for index, position in enumerate(self._positions):
            high, low = int(row[HEAD_WORDS + 2 * index]), int(row[HEAD_WORDS + 1 + 2 * index])
            touched = high != 0
            access_ranges.append(
                AccessRange(
                    position=position,
                    start_bytes=(~low & (2**64 - 1)) - _BIAS if touched else 0,
                    end_bytes=(high >> 16) - _BIAS if touched else 0,
                    site=high & 0xFFFF,
                )
            )
        return ProbeRecord(
            access_ranges=tuple(access_ranges),
            turns=int(row[0]),
            trace=int(row[2]),
            exceeded=bool(flags & _EXCEEDED),
            overflow=bool(flags & _OVERFLOW),
        )


_CONTENTS: dict[tuple[object, ...], npt.NDArray[np.uint8]] = {}
_MOST_CONTENTS = 256


def probe_contents(
    argument: Argument,
    num_bytes: int,
    *,
    seed: int,
    limit: int,
    spread: float,
    rule: ContentsRule | None = None,
) -> npt.NDArray[np.uint8]:
    """Return the contents of a buffer in a probe, as bytes; a pure function of its arguments.

    Half of the integers are ``limit`` - 1, so that the largest index occurs wherever values are
    used as indices; all others are uniform in [0, limit). Floating-point values are uniform in
    [0, spread) or, by ``rule``, whole numbers below ``limit`` or values of either sign. Structures
    are filled leaf by leaf.
    """
    leaves = tuple((leaf.offset_bytes, leaf.scalar_type, leaf.count) for leaf in argument.leaves)
    key = (
        argument.position, argument.scalar_type, argument.element_bytes, leaves, num_bytes, seed,
        limit, spread, rule,
    )  # fmt: skip
    known = _CONTENTS.get(key)
    if known is not None:
        return known
    random = np.random.Generator(np.random.PCG64(stream_key(seed=seed, position=argument.position)))
    data: npt.NDArray[np.uint8]
    if leaves:
        stride = argument.element_bytes
        count = num_bytes // stride
        data = np.zeros(num_bytes, dtype=np.uint8)
        rows = data[: count * stride].reshape(count, stride)
        for offset, scalar_type, width in leaves:
            values = _values(random, scalar_type, count * width, limit, spread, rule)
            raw = values.view(np.uint8).reshape(count, -1)
            rows[:, offset : offset + raw.shape[1]] = raw
    else:
        size = SCALAR_TYPES[argument.scalar_type].dtype.itemsize
        values = _values(random, argument.scalar_type, num_bytes // size, limit, spread, rule)
        data = values.view(np.uint8)
    if len(_CONTENTS) >= _MOST_CONTENTS:
        _CONTENTS.clear()
    _CONTENTS[key] = data
    return data


def _values(
    random: np.random.Generator,
    scalar_type: str,
    count: int,
    limit: int,
    spread: float,
    rule: ContentsRule | None,
) -> npt.NDArray[np.generic]:
    dtype = SCALAR_TYPES[scalar_type].dtype
    if dtype.kind == "f" and rule is ContentsRule.FLAGS:
        return random.integers(0, limit, count).astype(dtype)
    if dtype.kind == "f" and rule is ContentsRule.SIGNED:
        signed = random.uniform(0.5, 2.0, count) * random.choice((-1.0, 1.0), count)
        return np.asarray(signed, dtype)
    if dtype.kind == "f":
        return (random.random(count) * spread).astype(dtype)
    sign = -1 if limit < 0 and dtype.kind == "i" else 1
    limit = min(abs(limit), 2) if scalar_type == "bool" else abs(limit)
    largest = min(limit - 1, int(np.iinfo(dtype).max))
    values = random.integers(0, largest + 1, count)
    values[random.random(count) < 0.5] = largest
    return (sign * values).astype(dtype)
