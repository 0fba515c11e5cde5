"""Convert records to Arrow rows: the only place that gives results and devices their schema."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from llmperf_common.analysis import Analysis
from llmperf_common.builds import Build, KernelResources
from llmperf_common.failures import OK_STATUS, Failure, shorten_detail
from llmperf_common.features.activity import activity_of_kernel
from llmperf_common.features.work import Work
from llmperf_common.files.host_paths import without_host_paths
from llmperf_common.ids import HARNESS_VERSION
from llmperf_common.records import (
    STRATEGY_PRECEDENCE,
    Checks,
    Device,
    LaunchArgument,
    Sample,
    TaskResult,
    Timing,
)
from llmperf_common.schemas import DEVICES, KERNELS, SAMPLES
from llmperf_common.store.tables.analysis_rows import analysis_columns
from llmperf_common.store.tables.argument_rows import argument_rows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FEWEST_FOR_IQR = 4
"""Minimum number of readings for quartiles. With fewer readings, quartiles would only interpolate
between the extremes."""
LOG_LIMIT_BYTES = 64 * 2**10
"""Maximum number of bytes of the stored log of a build without errors. The limit is needed because
a source of 8 MiB can give a warning for each of its lines."""
_CHECKS = tuple(field.name for field in dataclasses.fields(Checks))


def samples_table(results: Sequence[TaskResult]) -> pa.Table:
    """Return the samples of ``results``, one row for each sample, in order."""
    rows = [_sample_row(result, sample) for result in results for sample in result.samples]
    return pa.Table.from_pylist(rows, schema=SAMPLES)


def kernels_table(results: Sequence[TaskResult]) -> pa.Table:
    """Return one row for each task."""
    return pa.Table.from_pylist([_kernel_row(result) for result in results], schema=KERNELS)


def devices_table(devices: Sequence[Device]) -> pa.Table:
    """Return one row for each device."""
    return pa.Table.from_pylist([dataclasses.asdict(device) for device in devices], schema=DEVICES)


def check_storable(analyses: Sequence[Analysis]) -> None:
    """Raise ValueError if a column of ``kernels`` cannot hold one of the analyses.

    Call it for analyses that another user may have written. Otherwise each run of their kernels
    would end when the kernels' rows are written. A hundred at once take a third of the time.
    """
    rows = [analysis_columns(one) for one in analyses]
    for name in rows[0] if rows else ():
        try:
            pa.array([row[name] for row in rows], KERNELS.field(name).type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"column {name} cannot hold the analysis: {error}") from None


def _sample_row(result: TaskResult, sample: Sample) -> dict[str, Any]:
    config = sample.config
    first = next(item for item in STRATEGY_PRECEDENCE if item in config.strategies)
    row = {
        "sample_id": config.sample_id,
        "task_id": result.task_id,
        "kernel_id": result.kernel.kernel_id,
        "device_id": result.device_id,
        "device_class": result.device_class,
        "global_size": list(config.global_size),
        "local_size": list(config.local_size),
        "args": [_launch_argument_row(argument) for argument in config.args],
        "regime": config.regime.value if config.regime else None,
        "input_strategy": first.value,
        "input_strategies": [
            item.value for item in STRATEGY_PRECEDENCE if item in config.strategies
        ],
        "seed": config.seed,
        "harness_version": HARNESS_VERSION,
        "task_attempt": sample.task_attempt,
        "worker_id": sample.worker_id,
        "created_at": _EPOCH + timedelta(microseconds=sample.created_at_us),
    }
    return row | _outcome_columns(sample.outcome) | _work_columns(sample.work)


def _launch_argument_row(argument: LaunchArgument) -> dict[str, Any]:
    rule = argument.contents
    return {
        "position": argument.position,
        "kind": argument.kind.value,
        "elements": argument.elements,
        "value": argument.value,
        "contents": rule.rule.value if rule else None,
        "contents_limit": rule.limit if rule else None,
    }


def _outcome_columns(outcome: Timing | Failure) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        return {
            "status": outcome.code.value,
            "failure_detail": without_host_paths(f"{outcome.stage.value}: {outcome.detail}"),
            "censor_reason": outcome.censored.value if outcome.censored else None,
        }
    times = outcome.time_ns
    return {
        "status": OK_STATUS,
        "time_ns": list(times),
        **statistics_of(times),
        "first_ns": outcome.first_ns,
        "cold_ns": list(outcome.cold_ns),
        "launches_per_reading": outcome.launches_per_reading,
        "stop_reason": outcome.stop_reason.value,
        "sm_clock_mhz": outcome.sm_clock_mhz,
        "temperature_c": outcome.temperature_c,
        "throttled": outcome.throttled,
        "checks": {name: getattr(outcome.checks, name) for name in _CHECKS},
    }


def _work_columns(work: Work | Failure | None) -> dict[str, Any]:
    if work is None:
        return {}
    if isinstance(work, Failure):
        return {"work_reason": without_host_paths(work.detail)}
    return {"work": dataclasses.asdict(work)}


def statistics_of(times: Sequence[float]) -> dict[str, float | None]:
    """Return the columns that follow from ``time_ns``, by name; ``times`` (ns) is not empty."""
    return {
        "median_ns": statistics.median(times),
        "min_ns": min(times),
        "iqr_ns": _iqr(times),
        "mean_ns": statistics.fmean(times),
    }


def _iqr(times: Sequence[float]) -> float | None:
    if len(times) < FEWEST_FOR_IQR:
        return None
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return upper - lower


def _kernel_row(result: TaskResult) -> dict[str, Any]:
    kernel = result.kernel
    signature = kernel.signature
    return {
        "task_id": result.task_id,
        "kernel_id": kernel.kernel_id,
        "name": kernel.name,
        "source": kernel.source,
        "source_sha256": kernel.source_sha256,
        "family_id": kernel.family_id,
        "suite": kernel.suite,
        "path": kernel.path,
        "dims": signature.dims if signature else None,
        "device_class": result.device_class,
        "args": argument_rows(signature.arguments) if signature else [],
        "required_local_size": signature.required_local_size if signature else None,
        "static_local_bytes": signature.static_local_bytes if signature else None,
        "invented_macros": kernel.invented_macros,
        "task_budget_s": result.task_budget_s,
        "one_processor": result.one_processor,
        "activity": activity_of_kernel(_ok_launches(result)),
        **analysis_columns(kernel.analysis),
        "build": _build_row(result.build) if result.build else None,
        "static_features": dict(signature.static_features) if signature else None,
        **_resource_columns(result.build.resources if result.build else None),
    }


def _ok_launches(result: TaskResult) -> Iterator[tuple[int, Work | None, bool | None]]:
    """Yield each timed launch's work-items, its work, and whether it wrote output."""
    for sample in result.samples:
        if isinstance(sample.outcome, Timing):
            work = sample.work if isinstance(sample.work, Work) else None
            num_items = math.prod(sample.config.global_size)
            yield num_items, work, sample.outcome.checks.writes_output


def _build_row(build: Build) -> dict[str, Any]:
    return {
        "options": build.options,
        "log": shorten_detail(without_host_paths(build.log), LOG_LIMIT_BYTES),
        "seconds": build.seconds,
        "binary_sha256": build.binary_sha256,
    }


def _resource_columns(resources: KernelResources | None) -> dict[str, Any]:
    if resources is None:
        return {}
    return {
        "registers": resources.registers,
        "spill_bytes": resources.spill_bytes,
        "shared_bytes": resources.shared_bytes,
        "occupancy": resources.occupancy,
    }
