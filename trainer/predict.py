"""Answer one question with a trained run: how long, how sure, which local size, what bounds it.

Owns the prediction record (DESIGN 8, contract). Needs no device: the run carries its devices' records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from llmperf_common.config import ConfigError
from llmperf_common.features import combine
from llmperf_common.launch_columns import LaunchColumns, columns_from_records
from llmperf_common.records import Device, LaunchConfig
from llmperf_common.roofline import bound_of
from llmperf_common.schemas import KERNELS, SAMPLES
from llmperf_common.static_feature_names import STATIC_FEATURES
from trainer.arguments import Filled, fill_arguments, local_memory_bytes, read_arguments
from trainer.errors import BadInput
from trainer.interface import Floats, Rows
from trainer.launch import PredictRequest, check_sizes, launch_config, legal_local_sizes
from trainer.ood import out_of_distribution
from trainer.run_folder import LoadedRun

__all__ = ["BadInput", "PredictRequest", "predict", "predict_times"]

_LOCAL_ITEMS = "log2_local_items"
_SAMPLE_TEXT = pa.schema([SAMPLES.field(name) for name in ("global_size", "local_size", "args")])
_KERNEL_TEXT = pa.schema([KERNELS.field(name) for name in ("name", "source", "args")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Predicted times of n launches of one kernel on one device, in ns, shape (n,) each."""

    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    features: Floats
    columns: LaunchColumns


def predict(run: LoadedRun, request: PredictRequest) -> dict[str, Any]:
    """Return the prediction record: JSON values, keys as in DESIGN 8.

    ``sweep`` is there only if asked for, fastest predicted first.

    Raises:
        BadInput: A device, size or argument that cannot be used; the message says what to do.
        ConfigError: No device is named and the run knows several.
    """
    device = _device(run, request.device)
    check_sizes(request, device)
    given = read_arguments(request.signature, request.args)
    analysis = request.analysis or _stored_analysis(run, request.kernel_id)
    asked = fill_arguments(
        request.signature, given, analysis, request.global_size, request.local_size
    )
    _check_local_memory(request, asked, device)
    launches = [launch_config(request, asked, request.local_size, device)]
    for local in legal_local_sizes(request, device):
        if local == request.local_size:
            continue
        filled = fill_arguments(request.signature, given, analysis, request.global_size, local)
        if local_memory_bytes(request.signature, filled.args) <= device.local_memory_bytes:
            launches.append(launch_config(request, filled, local, device))
    times = predict_times(run, request, launches, device)
    unlike = out_of_distribution(times.features[0], run.known)
    # By time, then the asked one, then the larger group: a tie must not change what the user has.
    order = sorted(
        range(len(launches)),
        key=lambda row: (times.time_ns[row], row != 0, -float(np.prod(launches[row].local_size))),
    )
    record: dict[str, Any] = {
        "kernel": request.kernel,
        "device": device.device_class,
        "time_ns": float(times.time_ns[0]),
        "interval": {
            "level": run.conformal.level,
            "low_ns": float(times.low_ns[0]),
            "high_ns": float(times.high_ns[0]),
        },
        "local_size_best": list(launches[_best(run, times, order)].local_size),
        "bound": bound_of(times.columns)[0].value,
        "ood": bool(unlike),
        "warnings": [
            *asked.warnings,
            *_dimension_warning(request),
            *_interval_warning(run),
            *unlike,
        ],
    }
    if request.sweep:
        record["sweep"] = [
            {
                "local_size": list(launches[row].local_size),
                "time_ns": float(times.time_ns[row]),
                "low_ns": float(times.low_ns[row]),
                "high_ns": float(times.high_ns[row]),
            }
            for row in order
        ]
    return record


def _interval_warning(run: LoadedRun) -> list[str]:
    if run.conformal.pooled.guarantee != "none":
        return []
    return [
        f"interval: the run has too few calibration families for {run.conformal.level:.0%}; it is the largest "
        "error seen, without guarantee"
    ]


def _best(run: LoadedRun, times: Times, order: Sequence[int]) -> int:
    """The fastest of the launches whose work-group is as large as some in training, if there are any.

    The model has no ground to prefer sizes it never saw; the sweep shows them all the same.
    """
    column = run.known.names.index(_LOCAL_ITEMS)
    low, high = run.known.low[column], run.known.high[column]
    for row in order:
        if low <= times.features[row, column] <= high:
            return row
    return order[0]


def predict_times(
    run: LoadedRun, request: PredictRequest, launches: Sequence[LaunchConfig], device: Device
) -> Times:
    """Return the times and intervals of some launches of ``request``'s kernel, in one batch."""
    columns = columns_from_records(request.signature, launches, device, tuple(STATIC_FEATURES))
    features = combine(columns)
    rows = Rows(
        features=features,
        samples=pa.Table.from_pylist([_sample_row(item) for item in launches], schema=_SAMPLE_TEXT),
        kernels=pa.Table.from_pylist([_kernel_row(request)], schema=_KERNEL_TEXT),
        kernel_row=np.zeros(len(launches), dtype=np.int64),
    )
    predicted = run.model.predict_log2_ns(rows)
    regimes = [item.regime.value if item.regime else "" for item in launches]
    low, high = run.conformal.interval_ns(predicted, regimes)
    return Times(
        time_ns=np.exp2(predicted), low_ns=low, high_ns=high, features=features, columns=columns
    )


def _device(run: LoadedRun, name: str | None) -> Device:
    known = ", ".join(sorted(run.devices))
    if name is None:
        if len(run.devices) == 1:
            return next(iter(run.devices.values()))
        raise ConfigError(f"the model knows several device classes: pass --device, one of {known}")
    if name not in run.devices:
        raise BadInput(
            f"--device {name}: the model was trained on {known}; choose one of these, or train on "
            f"data of {name}"
        )
    return run.devices[name]


def _stored_analysis(run: LoadedRun, kernel_id: str | None) -> dict[int, Mapping[str, Any]]:
    if kernel_id is None:
        return {}
    column = run.kernels.column("kernel_id").to_pylist()
    if kernel_id not in column:
        return {}
    entries = run.kernels.column("analysis")[column.index(kernel_id)].as_py()
    return {entry["position"]: entry for entry in entries}


def _check_local_memory(request: PredictRequest, filled: Filled, device: Device) -> None:
    needed = local_memory_bytes(request.signature, filled.args)
    if needed > device.local_memory_bytes:
        raise BadInput(
            f"kernel {request.kernel!r} needs {needed} bytes of local memory a work-group, "
            f"{device.device_class} has {device.local_memory_bytes}: give smaller __local arguments "
            "with --arg, or a smaller --local-size"
        )


def _dimension_warning(request: PredictRequest) -> list[str]:
    wanted, given = request.signature.dims, len(request.global_size)
    if wanted <= given:
        return []
    return [f"the kernel uses {wanted} dimensions and {given} given: the others have size 1"]


def _sample_row(launch: LaunchConfig) -> dict[str, Any]:
    return {
        "global_size": list(launch.global_size),
        "local_size": list(launch.local_size),
        "args": [
            {
                "position": item.position,
                "kind": item.kind.value,
                "elements": item.elements,
                "value": item.value,
            }
            for item in launch.args
        ],
    }


def _kernel_row(request: PredictRequest) -> dict[str, Any]:
    arguments = [
        {
            "position": item.position,
            "name": item.name,
            "kind": item.kind.value,
            "type_name": item.type_name,
            "scalar_type": item.scalar_type,
            "vector_width": item.vector_width,
            "element_bytes": item.element_bytes,
            "access": item.access.value,
        }
        for item in request.signature.arguments
    ]
    return {"name": request.kernel, "source": request.source, "args": arguments}
