"""Predicted times of launches of one kernel, raised to a lower bound of the possible time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.analysis import launch_sizes
from llmperf_common.features.features import combine, named_features
from llmperf_common.features.launch_columns import columns_from_records
from llmperf_common.features.least_time import least_time_ns
from llmperf_common.features.roofline import Bound, bound_of
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.features.work import Work
from llmperf_common.launch import is_integer_scalar
from llmperf_common.records import ArgumentKind, Device, LaunchConfig
from llmperf_common.schemas import KERNELS, SAMPLES
from trainer.data.training_range import unlike_training
from trainer.interface import Floats, Rows
from trainer.prediction.request import PredictRequest
from trainer.run.answers import check_intervals
from trainer.run.kernel_factors import KernelFactor, corrected, floor_ns
from trainer.run.loaded import LoadedRun

_SAMPLE_TEXT = pa.schema([SAMPLES.field(name) for name in ("global_size", "local_size", "args")])
_KERNEL_TEXT = pa.schema(
    [KERNELS.field(name) for name in ("name", "source", "args", "build", "device_class")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Predicted times of n launches of one kernel on one device, in ns, shape (n,) each.

    ``model_ns`` is the model's prediction. ``time_ns``, ``low_ns`` and ``high_ns`` are at least the
    lower bound ``least_ns``. ``unlike``: the launch is unlike the training data, so its interval is
    not calibrated. ``bound``: latency, bandwidth or compute. ``features`` has the columns
    ``run.known.names``, shape (n, f). ``factor``: the kernel's measured factor or None; times and
    intervals are corrected by it. ``is_cut``: the model read only a part of the kernel's source.
    """

    model_ns: Floats
    least_ns: Floats
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    unlike: npt.NDArray[np.bool_]
    features: Floats
    bound: tuple[Bound, ...]
    is_cut: npt.NDArray[np.bool_]
    factor: KernelFactor | None = None


def predict_times(
    run: LoadedRun,
    request: PredictRequest,
    launches: Sequence[LaunchConfig],
    device: Device,
    work: Sequence[Work | None] = (),
) -> Times:
    """Return the times and intervals of launches of ``request``'s kernel, from one model call.

    ``work`` is the counted work of each launch (None if not counted), or empty.
    """
    columns = columns_from_records(
        request.signature, launches, device, tuple(STATIC_FEATURES), work
    )
    features = combine(columns)
    rows = launch_rows(request, launches, device.device_class, features)
    said = run.predict(rows)
    checked = named_features(features, run.known.names)
    regimes = [item.regime.value if item.regime else "" for item in launches]
    with np.errstate(over="ignore"):  # checked below
        low, high = run.conformal.interval_ns(said.log2_ns, regimes, said.spread)
    log2_ns, factor = said.log2_ns, _factor(run, request, device)
    if factor is not None and run.factors is not None:
        own = corrected(run.factors.few_shot, factor, log2_ns, floor_ns(device))
        log2_ns = own.log2_ns
        half = own.half_width_log2
        with np.errstate(over="ignore"):
            low, high = np.exp2(log2_ns - half), np.exp2(log2_ns + half)
    unlike = unlike_training(checked, run.known)
    check_intervals(low[~unlike], high[~unlike], run.where)  # the others are not answered
    model_ns = np.exp2(log2_ns)
    least_ns = np.array([_least_ns(request, launch, device) for launch in launches])
    return Times(
        model_ns=model_ns,
        least_ns=least_ns,
        time_ns=np.maximum(model_ns, least_ns),
        low_ns=np.maximum(low, least_ns),
        high_ns=np.maximum(high, least_ns),
        unlike=unlike,
        features=checked,
        bound=tuple(bound_of(columns)),
        is_cut=np.zeros(len(launches), dtype=bool) if said.is_cut is None else said.is_cut,
        factor=factor,
    )


def launch_rows(
    request: PredictRequest,
    launches: Sequence[LaunchConfig],
    device_class: str,
    features: Floats,
) -> Rows:
    """Return launches of ``request``'s kernel as rows; ``features`` has shape (n, f)."""
    return Rows(
        features=features,
        samples=pa.Table.from_pylist([_sample_row(item) for item in launches], schema=_SAMPLE_TEXT),
        kernels=pa.Table.from_pylist([_kernel_row(request, device_class)], schema=_KERNEL_TEXT),
        kernel_row=np.zeros(len(launches), dtype=np.int64),
    )


def _factor(run: LoadedRun, request: PredictRequest, device: Device) -> KernelFactor | None:
    """Return the measured factor of the request's kernel on the device, or None."""
    if run.factors is None or request.kernel_id is None:
        return None
    return run.factors.factors.get((request.kernel_id, device.device_class))


def _least_ns(request: PredictRequest, launch: LaunchConfig, device: Device) -> float:
    declared = {one.position: one for one in request.signature.arguments}
    scalars = {
        declared[item.position].name: item.value or 0
        for item in launch.args
        if item.kind is ArgumentKind.SCALAR
        and is_integer_scalar(declared[item.position].scalar_type)
    }
    return least_time_ns(
        request.dense,
        launch_sizes(launch.global_size, launch.local_size, scalars),
        {at: one.element_bytes for at, one in declared.items()},
        {item.position: item.elements or 0 for item in launch.args},
        device,
    )


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
                "contents": item.contents.rule.value if item.contents else None,
                "contents_limit": item.contents.limit if item.contents else None,
            }
            for item in launch.args
        ],
    }


def _kernel_row(request: PredictRequest, device_class: str) -> dict[str, Any]:
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
    return {
        "name": request.kernel,
        "source": request.source,
        "args": arguments,
        "build": {"options": request.build_options},
        "device_class": device_class,
    }
