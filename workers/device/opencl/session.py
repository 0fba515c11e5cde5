"""OpenCL sessions for run children, and compilers for compile children.

Owns contexts, queues and programs. ``buffers.py`` owns buffers, ``launcher.py`` launches, and
``peaks.py`` measured peaks. Has no time limits: the parent kills a child that does not answer.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
import warnings
from importlib import resources
from types import TracebackType
from typing import Self

import numpy as np
import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Device, Kernel
from workers.device.interface import DeviceFailure, DeviceRef, Program
from workers.device.opencl.buffers import OpenclLoadedKernel
from workers.device.opencl.build_options import refused_option
from workers.device.opencl.compiler_text import compiler_text
from workers.device.opencl.device import describe, find_cl_device
from workers.device.opencl.errors import BUILD_PROGRAM_FAILURE, cl_errors, failure_of
from workers.device.opencl.peaks import FmaLoad, measure_peaks
from workers.device.opencl.queue import DeviceQueue
from workers.plan.inputs import FillKind

SENTINEL_LAUNCHES = 7
_SENTINEL_TURNS = 64
_SENTINEL_KEY = 1
_SENTINEL_ITEMS_PER_UNIT = 16_384


def build_program(
    context: cl.Context, device: cl.Device, source: str | bytes, options: str
) -> tuple[cl.Program, str]:
    """Build from source text or from a binary; return the program and the compiler's log.

    Source and options may be untrusted. So the compiler cannot open another file, and gets only
    options that are known to be harmless.

    pyopencl's own cache is off, because build times must be real, and because a child that is
    killed must not share a file with other children.

    Raises:
        DeviceFailure: ``build_error``, with the compiler's log.
    """
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise _build_error(f"options {options!r}: {error}") from error
    refused = refused_option(options)
    if refused is not None:
        raise _build_error(
            f"build option {refused!r} is refused: only -D, -U, -w, -Werror and the known "
            "-cl- options are allowed; a macro's value must not contain blanks or quotes"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on compiler output, and on "defeated caching"
        if isinstance(source, bytes):
            program = cl.Program(context, [device], [source])
        else:
            program = cl.Program(context, compiler_text(source, options))
            # This query makes the object a plain program. Otherwise pyopencl builds through its
            # cache. That path loses the log of a failed build and leaves the source in a temporary
            # file.
            program.get_info(cl.program_info.NUM_DEVICES)
        try:
            program.build(options=words, cache_dir=False)  # type: ignore[arg-type]
        except cl.Error as error:
            log = _build_log(program, device) if error.code == BUILD_PROGRAM_FAILURE else ""
            raise failure_of(error, stage=Stage.BUILD, log=log) from error
    return program, _build_log(program, device)


def _build_error(detail: str) -> DeviceFailure:
    return DeviceFailure(Failure(code=FailureCode.BUILD_ERROR, stage=Stage.BUILD, detail=detail))


def _build_log(program: cl.Program, device: cl.Device) -> str:
    try:
        log = program.get_build_info(  # type: ignore[no-untyped-call]
            device, cl.program_build_info.LOG
        )
    except cl.Error:
        return ""
    return str(log).strip("\0\n ")


class OpenclCompiler:
    """Compiles kernels to the device's binaries; lives in a compile child."""

    def __init__(self, ref: DeviceRef) -> None:
        """Open a context on the device ``ref``; raises LookupError if it is not present."""
        self._device = find_cl_device(ref)
        self._context = cl.Context([self._device])

    def compile(self, kernel: Kernel) -> Program:
        """Build ``kernel`` from source. Raises DeviceFailure (``build_error``) with the log."""
        start_s = time.perf_counter()
        program, log = build_program(
            self._context, self._device, kernel.source, kernel.build_options
        )
        with cl_errors(Stage.BUILD):
            cl.Kernel(program, kernel.name)  # a missing kernel name is an error of the source, too
            binary = bytes(program.binaries[0])
        return Program(
            binary=binary,
            options=kernel.build_options,
            log=log,
            seconds=time.perf_counter() - start_s,
        )


class OpenclSession:
    """An open context with a profiling queue; lives in a run child."""

    def __init__(self, ref: DeviceRef) -> None:
        """Open the device ``ref`` and build LLMPerf's kernels; LookupError if it is absent."""
        self._cl_device = find_cl_device(ref)
        self._context = cl.Context([self._cl_device])
        self._device = describe(self._cl_device)
        source = resources.files("workers.device.opencl").joinpath("fill.cl").read_text()
        own, _ = build_program(self._context, self._cl_device, source, "")
        self._queue = DeviceQueue(
            context=self._context, cl_device=self._cl_device, device=self._device, own_program=own
        )
        self._device = dataclasses.replace(
            self._device,
            plain_work_group_size=self._queue.own_kernel("empty_launch").get_work_group_info(
                cl.kernel_work_group_info.WORK_GROUP_SIZE, self._cl_device
            ),
        )
        with cl_errors(Stage.PROBE, waiting=True):
            self._queue.deepen_private_memory()
        self._spinner: FmaLoad | None = None
        self._sentinel: tuple[cl.Kernel, cl.Buffer, cl.Buffer] | None = None

    @property
    def device(self) -> Device:
        """The device's record; its peaks are None before ``measure_peaks``."""
        return self._device

    def measure_peaks(self) -> Device:
        """Measure bandwidths, FLOP/s, timer step and launch floor with LLMPerf's own kernels."""
        with cl_errors(Stage.PROBE):
            self._device = measure_peaks(self._queue, self._device)
        return self._device

    def load(self, kernel: Kernel, program: Program) -> OpenclLoadedKernel:
        """Load a compiled kernel, from source if there is no binary. Raises DeviceFailure."""
        code = program.binary or kernel.source
        built, _ = build_program(self._context, self._cl_device, code, program.options)
        with cl_errors(Stage.BUILD):
            loaded = cl.Kernel(built, kernel.name)
        return OpenclLoadedKernel(queue=self._queue, kernel=kernel, cl_kernel=loaded)

    def spin_up(self, milliseconds: float) -> None:
        """Keep the device busy for this time, so that its clocks settle."""
        if self._spinner is None:
            self._spinner = FmaLoad(self._queue, "fma_float32")
        end_s = time.perf_counter() + milliseconds / 1000
        while time.perf_counter() < end_s:
            self._spinner.launch_ns()  # an earlier kernel, not this one, causes any error here

    def sentinel_ns(self) -> float:
        """Return the median time of the sentinel kernel's launches, ns; its work never changes."""
        with cl_errors(Stage.LAUNCH, waiting=True):
            return self._sentinel_ns()

    def _sentinel_ns(self) -> float:
        items = self._device.compute_units * _SENTINEL_ITEMS_PER_UNIT
        if self._sentinel is None:
            kernel = self._queue.new_kernel("sentinel")
            data, output = (self._queue.allocate(items * 4) for _ in range(2))
            self._queue.fill(data, FillKind.FLOAT32, items, _SENTINEL_KEY)
            kernel.set_args(data, output, np.uint32(_SENTINEL_TURNS))
            self._sentinel = (kernel, data, output)  # a kernel does not keep its buffers alive
            self._queue.time_launch(kernel, items)
        kernel = self._sentinel[0]
        readings = [self._queue.time_launch(kernel, items) for _ in range(SENTINEL_LAUNCHES)]
        return float(np.median(readings))

    def close(self) -> None:
        """Wait for the queue and release the context."""
        self._spinner = None
        self._sentinel = None
        self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
