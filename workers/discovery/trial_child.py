"""Try every OpenCL device of this environment: ``python -m workers.discovery.trial_child``.

Owns the trial: build and launch wide vector maths, and compare the results with numpy's. Runs as a
child of ``runtime_trial``, because a broken runtime crashes. Writes one JSON object per line: first
the list of devices, then a verdict for each device. So the parent knows on which one a child died.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from importlib import resources
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from workers.device.interface import DeviceFailure
from workers.device.opencl.cache import use_private_cache
from workers.discovery.cpu_model import read_cpu_model, too_new_for
from workers.sandbox.parent_tie import die_with_parent

if TYPE_CHECKING:
    import pyopencl as cl  # noqa: TID251

_NUM_ITEMS = 64
_LANES_WIDE = 16
_LANES_HALF = 8
_RELATIVE_TOLERANCE = 1e-4


def main(arguments: list[str]) -> int:
    """List the devices and try them.

    Args:
        arguments: the parent's process id; the first device's index; ``cuda:N`` to try only that
            GPU, any other value for all devices; optionally ``--known-cpu-only``: do not try a CPU
            that is newer than the runtime's compiler.
    """
    parent, start, wanted, *options = arguments
    die_with_parent(int(parent))
    answers = _take_stdout()
    use_private_cache()
    import pyopencl as cl  # noqa: PLC0415, TID251

    from workers.device.opencl.device import describe, list_cl_devices  # noqa: PLC0415

    try:
        found = list_cl_devices()
    except cl.Error as error:
        sys.stderr.write(f"its library cannot be loaded, or has no platform ({error})\n")
        return 1
    _say(answers, listed=[dataclasses.asdict(ref) for ref, _ in found])
    for index in range(int(start), len(found)):
        ref, device = found[index]
        reason = None
        if wanted.startswith("cuda:") and ref.selector != wanted:
            reason = f"not tried: {wanted} was asked for"
        elif "--known-cpu-only" in options:
            reason = too_new_for(device.platform.version, read_cpu_model())
        reason = reason or _trial(device)
        record = dataclasses.asdict(describe(device)) if reason is None else None
        _say(answers, index=index, reason=reason, device=record)
    return 0


def _take_stdout() -> TextIO:
    """Return the real stdout; later output of runtimes and compilers goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, **values: Any) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def _trial(device: cl.Device) -> str | None:
    """Return why the device cannot be used; None if it builds, runs and computes correctly."""
    import pyopencl as cl  # noqa: PLC0415, TID251

    from workers.device.opencl.session import build_program  # noqa: PLC0415

    source = resources.files("workers.discovery").joinpath("trial.cl").read_text()
    try:
        context = cl.Context([device])
        program, _ = build_program(context, device, source, "")
        return _wrong_results(context, program)
    except DeviceFailure as error:
        return f"the trial kernel does not build: {_last_lines(error.failure.detail)}"
    except cl.Error as error:
        return f"the trial kernel does not run: {error}"


def _wrong_results(context: cl.Context, program: cl.Program) -> str | None:
    import pyopencl as cl  # noqa: PLC0415, TID251

    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    values = np.linspace(0.1, 2.0, _NUM_ITEMS * _LANES_WIDE, dtype=np.float32)
    read_only = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    source = cl.Buffer(context, read_only, hostbuf=values)
    result = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, values.nbytes)
    wide = np.exp(values) + np.sin(values) + values**1.5 + values * values + 2.0
    half = np.exp(values) * np.cos(values) + values**2.5
    for name, num_values, expected in (
        ("trial_wide", _NUM_ITEMS * _LANES_WIDE, wide),
        ("trial_half_wide", _NUM_ITEMS * _LANES_HALF, half),
    ):
        kernel = cl.Kernel(program, name)
        kernel.set_args(source, result)
        event = cl.enqueue_nd_range_kernel(queue, kernel, (_NUM_ITEMS,), (8,))
        event.wait()
        if event.profile.end < event.profile.start:
            return "event times run backwards"
        got = np.empty_like(values)
        cl.enqueue_copy(queue, got, result)
        if not np.allclose(
            got[:num_values], expected[:num_values], rtol=_RELATIVE_TOLERANCE, atol=1e-4
        ):
            return f"{name} calculates wrongly"
    return None


def _last_lines(text: str, num_lines: int = 3) -> str:
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-num_lines:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
