"""Part (b): kernel_tuner's OpenCL backend at its defaults, in one process.

``python -m benchmarks.collecting.collectors.tuner WORK.json LOG.jsonl``, with kernel_tuner 1.5.0 on
``PYTHONPATH``. ``HOW_TO_INSTALL`` installs only the requirements of this strategy and this backend.

Each launch config is one ``tune_kernel`` call, because a call has one problem size and one set of
arguments, and both differ between LLMPerf's configs. A call opens a context, uploads numpy arrays,
and builds and launches once as a warm-up. Then it builds the kernel and launches it ``iterations``
(7) times; ``time`` is the mean and ``times`` has each time, in ms. The call never writes the inputs
again, so a kernel that reads what it writes works on its own output.

A row has ``call_s``, the time of the whole call, and ``own_s``, the time that kernel_tuner counts
for the config after the warm-up (compile, benchmark, framework). ``own_s`` contains no context and
no upload, and the build comes from pyopencl's cache, which the warm-up has filled. Tuning many
block sizes of one problem is not faster than ``own_s`` per config. Neither time includes the making
of the inputs (``input_s``).
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl  # noqa: TID251  (kernel_tuner wants indices of platform and device)

from benchmarks.collecting.collectors.host_inputs import host_bytes
from benchmarks.collecting.collectors.jobs import Job, read_work
from benchmarks.collecting.collectors.log import PartLog, begun_items, read_log
from llmperf_common.records import ArgumentKind
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.plan.inputs import SCALAR_TYPES, pack_scalar

EXIT_LOST_CONTEXT = 3
EXIT_MISSING = 4
HOW_TO_INSTALL = (
    "part b needs kernel_tuner: pip install --no-deps --target FOLDER kernel_tuner==1.5.0 python-constraint2 xmltodict"
    " jsonschema jsonschema-specifications referencing rpds-py attrs packaging typing_extensions, then PYTHONPATH=FOLDER"
)
_HARMLESS = frozenset({-4, -11, -52, -53, -54, -55, -61})
"""OpenCL's codes of allocation, build and NDRange errors. With these errors nothing was launched.
After any other error the process ends."""


def main(arguments: Sequence[str]) -> int:
    """Time the launch configs that the log does not have; return the exit code."""
    work_path, log_path = (Path(one).resolve() for one in arguments)
    try:
        from kernel_tuner import tune_kernel  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError as error:
        sys.stderr.write(f"{error}: {HOW_TO_INSTALL}\n")
        return EXIT_MISSING
    warnings.simplefilter("ignore")  # about dtypes of typedefs, which kernel_tuner does not know
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    work = read_work(work_path)
    done = begun_items(read_log(log_path))
    os.chdir(log_path.parent)  # kernel_tuner writes sources of failed kernels there
    platform, device = _indices(DeviceRef(**work.device_ref))
    with PartLog(log_path) as log:
        log.ready()
        for job in work.jobs:
            (launch,) = job.launches
            if launch.sample_id in done:
                continue
            log.begin(launch.sample_id)
            reason = unsupported(job)
            outcome = {"status": reason} if reason else _time(tune_kernel, job, platform, device)
            log.write({"kernel_id": job.kernel_id, "sample_id": launch.sample_id, **outcome})
            if outcome["status"] == "lost_context":
                return EXIT_LOST_CONTEXT
            gc.collect()  # frees contexts and buffers in reference cycles; not timed
    return 0


def unsupported(job: Job) -> str:
    """Return why kernel_tuner's OpenCL backend cannot take the kernel, or an empty text."""
    if any(one.kind is ArgumentKind.LOCAL_BUFFER for one in job.arguments):
        return "local_buffer_argument"  # the backend takes numpy arrays and numpy scalars only
    return ""


def arguments_of(job: Job) -> list[npt.NDArray[Any] | np.generic]:
    """Return the arguments for kernel_tuner: arrays for buffers, numpy scalars for values."""
    (launch,) = job.launches
    made: list[npt.NDArray[Any] | np.generic] = []
    for argument, given in zip(job.arguments, launch.args, strict=True):
        if argument.kind is not ArgumentKind.SCALAR:
            contents = host_bytes(argument, given, seed=launch.seed)
            scalar = None if argument.leaves else SCALAR_TYPES.get(argument.scalar_type)
            if scalar is not None and len(contents) % scalar.dtype.itemsize == 0:
                made.append(contents.view(scalar.dtype))
            else:
                made.append(contents)  # the bytes of a structure
            continue
        assert given.value is not None, "a scalar has a value"
        packed = pack_scalar(argument, given.value)
        if isinstance(packed, np.ndarray):  # a vector by value: an array would become a buffer
            packed = packed.view(np.dtype((np.void, packed.nbytes)))[0]
        made.append(packed)
    return made


def _time(tune_kernel: Any, job: Job, platform: int, device: int) -> dict[str, object]:
    (launch,) = job.launches
    start_s = time.monotonic()
    arguments = arguments_of(job)
    input_s = time.monotonic() - start_s
    names = ("block_size_x", "block_size_y", "block_size_z")
    blocks = {name: [side] for name, side in zip(names, launch.local_size, strict=False)}
    start_s = time.monotonic()
    outcome: dict[str, object]
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            results, _ = tune_kernel(
                job.name,
                job.source,
                launch.global_size,
                arguments,
                blocks,
                lang="OpenCL",
                platform=platform,
                device=device,
                compiler_options=shlex.split(job.build_options) or None,
            )
        outcome = _outcome(results)
    except cl.Error as error:
        number = int(getattr(error, "code", 0))
        lost = "failed" if number in _HARMLESS else "lost_context"
        outcome = {"status": lost, "detail": f"{number}: {error}"[:500]}
    except Exception as error:  # noqa: BLE001  (any error counts as a failed config)
        outcome = {"status": "failed", "detail": f"{type(error).__name__}: {error}"[:500]}
    return {"call_s": time.monotonic() - start_s, "input_s": input_s, **outcome}


def _outcome(results: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    if not results:
        return {"status": "failed", "detail": "no result: restricted away"}
    (result,) = results
    if "__error__" in result or "times" not in result:
        return {"status": "failed", "detail": repr(result.get("__error__"))[:500]}
    own_ms = sum(float(result[key]) for key in ("compile_time", "benchmark_time", "framework_time"))
    return {
        "status": "ok",
        "median_ns": statistics.median(result["times"]) * 1e6,
        "mean_ns": float(result["time"]) * 1e6,
        "num_readings": len(result["times"]),
        "own_s": own_ms / 1e3,
    }


def _indices(ref: DeviceRef) -> tuple[int, int]:
    """Return kernel_tuner's indices: of the device's platform, and of the device within it."""
    wanted = find_cl_device(ref)
    for number, platform in enumerate(cl.get_platforms()):
        if platform == wanted.platform:
            return number, platform.get_devices().index(wanted)
    raise LookupError(f"{ref.name} is on no platform")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
