"""Traces of the bytes that a launch accesses, made on a CPU OpenCL device for a dataset's report.

Decides which launch of a kernel is traced, and owns the reason that is shown if there is no trace.
The tracing runs in a child process with a time limit (``workers/work``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llmperf.cpu_step import CpuStep
from llmperf_common.errors import LlmperfError
from llmperf_common.features.accesses import AccessTrace
from llmperf_common.records import Kernel, LaunchConfig, Signature
from llmperf_common.store.tables.argument_rows import arguments_from_rows
from llmperf_common.store.tables.launch_rows import LAUNCH_COLUMNS, launch_from_row

_MOST_CHARACTERS = 240
"""Maximum number of characters of a reason why there is no trace."""
_ROW_COLUMNS = ("kernel_id", "status", *LAUNCH_COLUMNS)
_OK = "ok"
_MOST_DIMENSIONS = 3


def traced_accesses(
    samples: pa.Table,
    kernels: pa.Table,
    names: Sequence[str],
    *,
    step: CpuStep = CpuStep.AUTO,
    progress: Callable[[str], object] = lambda _line: None,
) -> dict[str, AccessTrace | str]:
    """Return what one launch of each named kernel accesses, or the reason why that is unknown.

    The launch is the middle one of the kernel's timed launches, ordered by number of work-items.

    Args:
        samples: table of ``schemas.SAMPLES``.
        kernels: table of ``schemas.KERNELS``.
        names: names or ids of kernels. If the dataset lacks one of them, the report will refuse
            this name, so nothing is traced and the result is empty.
        step: ``off`` traces nothing.
        progress: receives one line before each step that takes seconds.

    Returns:
        A trace or a reason, by ``kernel_id``.
    """
    found: dict[str, AccessTrace | str] = {}
    launches: dict[str, tuple[Kernel, LaunchConfig]] = {}
    rows = _kernel_rows(kernels, names)
    if set(names) - {one[key] for one in rows for key in ("kernel_id", "name")}:
        return {}
    for row in rows:
        launch = _launch_of(row, samples) if step is CpuStep.AUTO else "tracing was switched off"
        if isinstance(launch, str):
            found[row["kernel_id"]] = launch
        else:
            launches[row["kernel_id"]] = launch
    if launches:
        outcomes = _traced(list(launches.values()), progress)
        found.update(zip(launches, outcomes, strict=True))
    return found


def _kernel_rows(kernels: pa.Table, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the first row of each kernel with one of the names or ids."""
    # Leave out names that are not valid UTF-8: no kernel has one, and Arrow would refuse it.
    wanted = pa.array([one for one in names if _is_utf8(one)], pa.string())
    is_named = pc.or_(
        pc.is_in(kernels.column("kernel_id").cast(pa.string()), value_set=wanted),
        pc.is_in(kernels.column("name").cast(pa.string()), value_set=wanted),
    )
    rows: dict[str, dict[str, Any]] = {}
    for row in kernels.filter(is_named).to_pylist():
        rows.setdefault(row["kernel_id"], row)
    return list(rows.values())


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _launch_of(row: Mapping[str, Any], samples: pa.Table) -> tuple[Kernel, LaunchConfig] | str:
    """Return a kernel with the launch to trace, or the reason why there is no such launch."""
    kernel = _kernel_of(row)
    if isinstance(kernel, str):
        return kernel
    if not set(_ROW_COLUMNS) <= set(samples.column_names):
        return "the dataset lacks columns that describe its launches"
    own = samples.select(list(_ROW_COLUMNS)).filter(
        pc.and_(
            pc.equal(samples.column("kernel_id").cast(pa.string()), row["kernel_id"]),
            pc.equal(samples.column("status").cast(pa.string()), _OK),
        )
    )
    timed = [one for one in own.to_pylist() if one["global_size"]]
    if not timed:
        return "no launch of this kernel was timed"
    timed.sort(key=lambda one: math.prod(one["global_size"]))
    try:
        config = launch_from_row(timed[len(timed) // 2])
    except (TypeError, ValueError) as error:
        return f"the launch's row cannot be read: {error}"
    if not _fits(kernel, config):
        return "the launch's arguments or sizes do not fit the kernel"
    return kernel, config


def _fits(kernel: Kernel, config: LaunchConfig) -> bool:
    """Whether a launch's arguments and sizes fit a kernel.

    A dataset of unknown origin may contradict itself.
    """
    assert kernel.signature is not None, "just made"
    declared = [(one.position, one.kind) for one in kernel.signature.arguments]
    given = [(one.position, one.kind) for one in config.args]
    sizes = (config.global_size, config.local_size)
    return (
        sorted(given) == sorted(declared)
        and len(sizes[0]) == len(sizes[1]) <= _MOST_DIMENSIONS
        and all(side > 0 and total % side == 0 for total, side in zip(*sizes, strict=True))
    )


def _kernel_of(row: Mapping[str, Any]) -> Kernel | str:
    if row.get("source") is None:
        return "the dataset does not hold the kernel's source"
    try:
        arguments = arguments_from_rows(row.get("args") or ())
    except (TypeError, ValueError) as error:
        return f"the kernel's arguments cannot be read: {error}"
    if arguments is None or row.get("dims") is None:
        return (
            "an earlier version of LLMPerf collected the dataset and stored too little about the "
            "kernel's arguments"
        )
    local_size = row.get("required_local_size")
    signature = Signature(
        arguments=arguments,
        dims=row["dims"],
        required_local_size=tuple(local_size) if local_size else None,
        static_local_bytes=row.get("static_local_bytes") or 0,
        static_features={},
    )
    return Kernel(
        kernel_id=row["kernel_id"],
        name=row["name"],
        source=row["source"],
        source_sha256=row["source_sha256"],
        path=row["path"],
        suite=row["suite"],
        family_id=row["family_id"],
        build_options=(row.get("build") or {}).get("options") or "",
        signature=signature,
        failure=None,
    )


def _traced(
    launches: Sequence[tuple[Kernel, LaunchConfig]], progress: Callable[[str], object]
) -> list[AccessTrace | str]:
    from workers.discovery.find import NoDevice, choose  # noqa: PLC0415  (needed by few)
    from workers.work.trace_children import trace_all  # noqa: PLC0415

    progress("looking for a CPU OpenCL device, to trace memory accesses")
    device = choose("cpu")
    if isinstance(device, NoDevice):
        return ["there is no usable CPU OpenCL device (see `llmperf doctor`)"] * len(launches)
    progress(f"tracing memory accesses of {len(launches)} kernels on {device.name}")
    num_children = min(len(launches), os.cpu_count() or 1)
    try:
        found = trace_all(launches, device, num_children=num_children)
    except (LlmperfError, OSError) as error:
        return [_short(str(error))] * len(launches)
    return [one if isinstance(one, AccessTrace) else _short(one.detail) for one in found]


def _short(reason: str) -> str:
    words = " ".join(reason.split())
    return words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]}…"
