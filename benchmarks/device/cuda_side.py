"""One launch config prepared for OpenCL and for the CUDA driver, with equal inputs.

Owns the conversion of a ``LaunchConfig`` to a launch of ``workers/device/cuda/launcher.py``, and
the comparison of the buffers of both sides.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmperf_common.records import (
    Argument,
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Strategy,
)
from workers.device.cuda.driver import CudaContext
from workers.device.cuda.launcher import CudaBuffer, CudaLaunch, EventClock
from workers.device.interface import Program
from workers.device.opencl.buffers import OpenclLoadedKernel
from workers.device.opencl.limits import GUARD_BYTES
from workers.plan.inputs import pack_scalar, reference_bytes
from workers.plan.strategies.rules import SimpleRule

_LOCAL_SIZE = 256
_INPUT_SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSide:
    """A launch config on the CUDA driver; ``fresh`` has the inputs of buffers that are written."""

    launch: CudaLaunch
    buffers: dict[int, CudaBuffer]
    fresh: dict[int, CudaBuffer]

    def refill(self) -> None:
        """Restore the inputs by copies on the GPU."""
        for position, source in self.fresh.items():
            self.buffers[position].copy_from(source)


class Cuda:
    """A CUDA context that can be reopened after a kernel has broken it."""

    def __init__(self, device_uuid: str) -> None:
        self._device_uuid = device_uuid
        self.context, self.clock = self._opened()

    def reopen(self) -> None:
        """Close the context and open another."""
        self.close()
        self.context, self.clock = self._opened()

    def close(self) -> None:
        """Close the context."""
        self.context.close()

    def cost(self) -> str:
        """Return a text with the seconds and memory that a context costs a fresh process."""
        code = (
            "import sys, time; from workers.device.cuda.driver import CudaContext; s = time.perf_counter();"
            "c = CudaContext(sys.argv[1]); print(time.perf_counter() - s, flush=True); input(); c.close()"
        )
        free_bytes = self.context.free_bytes()
        with subprocess.Popen(
            [sys.executable, "-c", code, self._device_uuid],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            assert child.stdin is not None
            assert child.stdout is not None
            seconds = float(child.stdout.readline() or "nan")
            used_bytes = free_bytes - self.context.free_bytes()
            child.communicate("\n")
        return f"a CUDA context in a fresh process: {seconds:.2f} s, {used_bytes / 2**20:.0f} MiB of GPU memory"

    def _opened(self) -> tuple[CudaContext, EventClock]:
        context = CudaContext(self._device_uuid)
        return context, context.event_clock()


def launch_config(kernel: Kernel, items: int) -> LaunchConfig:
    """Return a launch of the strategy simple (README of ``kernels/``): safe and deterministic."""
    assert kernel.signature is not None, "kernels without one are left out"
    local_size = kernel.signature.required_local_size or (_LOCAL_SIZE,)
    return LaunchConfig(
        sample_id="", global_size=(items,), local_size=tuple(local_size[:1]),
        args=SimpleRule(signature=kernel.signature).arguments((items,), tuple(local_size[:1])),
        regime=None, strategies=(Strategy.SIMPLE,), seed=_INPUT_SEED,
    )  # fmt: skip


def cuda_side(
    context: CudaContext, kernel: Kernel, program: Program, config: LaunchConfig
) -> CudaSide:
    """Prepare ``config`` on the CUDA driver, with buffers as OpenCL has them. Raises CudaError."""
    assert kernel.signature is not None, "kernels without one are left out"
    pairs = list(zip(kernel.signature.arguments, config.args, strict=True))
    buffers, fresh = {}, {}
    for argument, given in pairs:
        if argument.kind in (ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER):
            data = _inputs(argument, given, config.seed)
            buffers[argument.position] = context.upload(data)
            if "write" in argument.access.value:
                fresh[argument.position] = context.upload(data)
    loaded = context.load(program.binary, kernel.name, work_dim=len(config.global_size))
    arguments = [
        buffers[argument.position]
        if argument.position in buffers
        else max(1, (given.elements or 0) * argument.element_bytes)
        if argument.kind is ArgumentKind.LOCAL_BUFFER
        else pack_scalar(argument, given.value or 0).tobytes()
        for argument, given in pairs
    ]
    launch = loaded.prepare(
        global_size=config.global_size, local_size=config.local_size, arguments=arguments
    )
    return CudaSide(launch=launch, buffers=buffers, fresh=fresh)


def outputs_equal(
    context: CudaContext, kernel: Kernel, loaded: OpenclLoadedKernel, side: CudaSide, config: LaunchConfig
) -> bool:  # fmt: skip
    """Launch once on each side and compare all buffers. Raises CudaError, DeviceFailure."""
    assert kernel.signature is not None, "kernels without one are left out"
    loaded.prepare(config).launch()
    side.refill()
    side.launch.enqueue()
    context.synchronize()
    return all(
        side.buffers[argument.position].read(num_bytes) == loaded.read_buffer(argument.position, num_bytes)
        for argument, given in zip(kernel.signature.arguments, config.args, strict=True)
        if argument.position in side.buffers
        for num_bytes in [(given.elements or 0) * argument.element_bytes]
    )  # fmt: skip


def _inputs(argument: Argument, given: LaunchArgument, seed: int) -> npt.NDArray[np.uint8]:
    """Return the buffer's inputs and the zeroed padding after them, as on OpenCL's side."""
    data = reference_bytes(
        argument, elements=given.elements or 0, seed=seed, contents=given.contents
    )
    return np.concatenate([data, np.zeros(GUARD_BYTES, np.uint8)])
