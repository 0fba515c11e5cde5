"""Prediction by a trained run: time, interval, best local size and bound of a launch.

Owns the prediction record (contract: docs/reference/cli.md). Needs no device: the run contains the
records of its devices.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmperf_common.features.work import Work
from llmperf_common.files.visible import shortened
from llmperf_common.launch import local_memory_bytes
from llmperf_common.records import Device, LaunchConfig
from trainer.data.training_range import out_of_distribution_each
from trainer.errors import BadInput
from trainer.interface import Progress
from trainer.prediction.arguments import Filled
from trainer.prediction.predicted_times import Times, predict_times
from trainer.prediction.request import (
    PredictRequest,
    check_sizes,
    device_of,
    launch_config,
    legal_local_sizes,
    named_errors,
)
from trainer.run.loaded import LOCAL_ITEMS, LoadedRun

__all__ = ["BadInput", "PredictRequest", "predict", "predict_many"]

_MOST_LAUNCHES = 8192
"""Maximum launches in one call of a model, to bound memory and to report progress."""

_CUT = (
    "the kernel's source is longer than the model's context, so the model read a part of it: "
    "functions that the kernel calls are left out first, then the middle of the kernel"
)

_NO_WORK = "the work of the launch could not be counted, so the time is less certain: {why}"

_PROGRESS_INTERVAL_S = 5.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One request with its launches: the user's first, then those with other local sizes."""

    request: PredictRequest
    asked: Filled
    launches: tuple[LaunchConfig, ...]


def predict(run: LoadedRun, request: PredictRequest) -> dict[str, Any]:
    """Return the prediction record: JSON values under the keys of the contract.

    ``sweep`` exists only if the request asks for it, with the fastest local size first.
    ``local_size_best`` is empty if local sizes were not compared. The values of ``interval`` are
    None if the launch is unlike the training data.

    Raises:
        BadInput: A device, size or argument cannot be used; the message says what to do.
        ConfigError: The request names no device and the run knows several.
    """
    return predict_many(run, [request])[0]


def predict_many(
    run: LoadedRun,
    requests: Sequence[PredictRequest],
    progress: Progress = lambda _line: None,
) -> list[dict[str, Any]]:
    """Return the records of several launches of one kernel on one device, in their order.

    All requests are checked first; then the model predicts some thousand launches at a time.

    Args:
        run: the trained run.
        requests: requests for one kernel and one device.
        progress: receives a line every few seconds.

    Raises:
        BadInput: As in ``predict``; the message begins with the request's name.
        ConfigError: As in ``predict``.
        ValueError: The requests are of several kernels or devices, which is a caller's bug.
    """
    if not requests:
        return []
    if len({(one.kernel, one.kernel_id, one.device) for one in requests}) > 1:
        raise ValueError("predict_many takes requests of one kernel and one device")
    device = device_of(run, requests[0].device)
    told = time.monotonic()
    questions = []
    for request in requests:
        with named_errors(request.name):
            questions.append(_question(request, device))
        told = tell_checked(progress, told, len(questions), len(requests))
    begin = time.monotonic()
    records: list[dict[str, Any]] = []
    for some in _batches(questions):
        records += _records(run, some, device)
        now = time.monotonic()
        if now - told >= _PROGRESS_INTERVAL_S and len(records) < len(questions):
            told = now
            left = (now - begin) * (len(questions) / len(records) - 1)
            progress(
                f"{len(records):,} of {len(questions):,} launches predicted, {left:.0f} s left"
            )
    return records


def tell_checked(progress: Progress, told: float, num: int, of: int) -> float:
    """Say how many launches are checked, every few seconds; return the time of the last line."""
    now = time.monotonic()
    if now - told < _PROGRESS_INTERVAL_S or num == of:
        return told
    progress(f"{num:,} of {of:,} launches checked")
    return now


def _batches(questions: Sequence[_Question]) -> Iterator[Sequence[_Question]]:
    """Yield the questions in groups of at most ``_MOST_LAUNCHES`` launches (or one question)."""
    first, num = 0, 0
    for number, one in enumerate(questions):
        if num and num + len(one.launches) > _MOST_LAUNCHES:
            yield questions[first:number]
            first, num = number, 0
        num += len(one.launches)
    yield questions[first:]


def _records(
    run: LoadedRun, questions: Sequence[_Question], device: Device
) -> Iterator[dict[str, Any]]:
    """Yield the record of each question, from one call of the model."""
    launches = [launch for one in questions for launch in one.launches]
    start = np.cumsum([0, *(len(one.launches) for one in questions)])
    work, no_work = _work(run, questions[0].request, launches, start.tolist())
    times = predict_times(run, questions[0].request, launches, device, work)
    unlike = start[:-1][times.unlike[start[:-1]]]
    warnings = out_of_distribution_each(times.features[unlike], run.known)
    warned = dict(zip(unlike.tolist(), warnings, strict=True))
    for one, first, stop in zip(questions, start[:-1].tolist(), start[1:].tolist(), strict=True):
        said = [_NO_WORK.format(why=no_work)] if no_work and work[first] is None else []
        said += warned.get(first, [])
        yield _record(
            run, one, times, range(first, stop), device, said, is_counted=work[first] is not None
        )


def _work(
    run: LoadedRun,
    request: PredictRequest,
    launches: Sequence[LaunchConfig],
    start: Sequence[int],
) -> tuple[list[Work | None], str]:
    """Return the counted work of the launches (None if unknown), and why some was not counted.

    The launches of one question are compared with each other, so that either all of them have their
    work or none has. No work is counted if the model does not use it.
    """
    work: list[Work | None] = [None] * len(launches)
    if request.count is None or not run.reads_work:
        return work, ""
    counted = request.count(launches)
    for first, stop in itertools.pairwise(start):
        if all(one is not None for one in counted.work[first:stop]):
            work[first:stop] = counted.work[first:stop]
    return work, counted.why


def _question(request: PredictRequest, device: Device) -> _Question:
    sizes = request.global_size, request.local_size
    check_sizes(request.kernel, request.signature, *sizes, device)
    asked = request.filler.fill(request.global_size, request.local_size)
    _check_local_memory(request, asked, device)
    launches = [launch_config(request, asked, request.local_size, device)]
    others = legal_local_sizes(request, device) if request.compare or request.sweep else ()
    for local in others:
        if local == request.local_size or not request.filler.allows(local):
            continue
        filled = request.filler.fill(request.global_size, local)
        if local_memory_bytes(request.signature, filled.args) <= device.local_memory_bytes:
            launches.append(launch_config(request, filled, local, device))
    return _Question(request=request, asked=asked, launches=tuple(launches))


def _record(
    run: LoadedRun,
    one: _Question,
    times: Times,
    rows: range,
    device: Device,
    own: Sequence[str],
    *,
    is_counted: bool,
) -> dict[str, Any]:
    """Return one record; ``own`` are warnings of this launch."""
    asked = rows.start
    launches = dict(zip(rows, one.launches, strict=True))
    # Order: by time, then the user's local size, then the larger work-group, so that a tie does not
    # recommend a change. Times that were raised to the same lower bound are ties.
    order = sorted(
        rows,
        key=lambda row: (
            times.time_ns[row],
            row != asked,
            -float(np.prod(launches[row].local_size)),
        ),
    )
    compared = one.request.compare or one.request.sweep
    best = _best(run, times, order)
    is_known = not times.unlike[asked]
    record: dict[str, Any] = {
        "kernel": one.request.kernel,
        "device": device.device_class,
        "time_ns": float(times.time_ns[asked]),
        "interval": {
            "level": run.conformal.level if is_known else None,
            **_range(times, asked),
        },
        "local_size_best": list(launches[best].local_size) if compared else [],
        "bound": times.bound[asked].value,
        "ood": not is_known,
        "work": "counted" if is_counted else "none",
        "warnings": [
            *one.asked.warnings,
            *_dimension_warning(one.request),
            *_array_warning(one.request),
            *([_CUT] if times.is_cut[asked] else []),
            *([times.factor.said()] if times.factor is not None else []),
            *_least_warning(times, asked),
            *_best_warning(launches, times, best, order[0]),
            *own,
            *(_interval_warning(run, times) if is_known else ()),
        ],
    }
    if one.request.sweep:
        record["sweep"] = [
            {
                "local_size": list(launches[row].local_size),
                "time_ns": float(times.time_ns[row]),
                **_range(times, row),
            }
            for row in order
        ]
    return record


def _range(times: Times, row: int) -> dict[str, float | None]:
    if times.unlike[row]:
        return {"low_ns": None, "high_ns": None}
    return {"low_ns": float(times.low_ns[row]), "high_ns": float(times.high_ns[row])}


def _interval_warning(run: LoadedRun, times: Times) -> list[str]:
    band = run.conformal.pooled
    if times.factor is not None and run.factors is not None:
        band = run.factors.few_shot.band(times.factor.num_launches)
    if band.guarantee != "none":
        return []
    return [
        f"interval: the run has too few calibration families for {run.conformal.level:.0%}; its "
        "half width is the largest error seen, without guarantee"
    ]


def _least_warning(times: Times, row: int) -> list[str]:
    model_ns, least_ns = times.model_ns[row], times.least_ns[row]
    if model_ns >= least_ns:
        return []
    return [
        f"the model says {model_ns:,.0f} ns, less than this launch can take on the device (its "
        f"memory traffic at the measured peak, or an empty launch): raised to {least_ns:,.0f} ns"
    ]


def _best_warning(
    launches: dict[int, LaunchConfig], times: Times, best: int, fastest: int
) -> list[str]:
    if times.time_ns[best] <= times.time_ns[fastest]:
        return []
    names = [",".join(map(str, launches[row].local_size)) for row in (fastest, best)]
    return [
        f"local size {names[0]} is predicted to be the fastest, but no training launch used that "
        f"work-group size; local_size_best is {names[1]}, the fastest size that training used"
    ]


def _best(run: LoadedRun, times: Times, order: Sequence[int]) -> int:
    """Return the fastest launch whose work-group size is within the range of the training data.

    The model is unreliable for other sizes, but the sweep shows them, too.
    """
    column = run.known.names.index(LOCAL_ITEMS)
    low, high = run.known.low[column], run.known.high[column]
    for row in order:
        if low <= times.features[row, column] <= high:
            return row
    return order[0]


def _check_local_memory(request: PredictRequest, filled: Filled, device: Device) -> None:
    needed = local_memory_bytes(request.signature, filled.args)
    if needed > device.local_memory_bytes:
        raise BadInput(
            f"kernel {shortened(request.kernel)!r} needs {needed} bytes of local memory per work-group, but "
            f"{device.device_class} has {device.local_memory_bytes}: give smaller __local "
            "arguments with --arg, or a smaller --local-size"
        )


def _dimension_warning(request: PredictRequest) -> list[str]:
    wanted, given = request.signature.dims, len(request.global_size)
    if wanted <= given:
        return []
    return [
        f"the global size has {given} of the kernel's {wanted} dimensions: the others have size 1"
    ]


def _array_warning(request: PredictRequest) -> list[str]:
    if request.filler.allows(request.local_size):
        return []
    size = ",".join(map(str, request.local_size))
    return [f"local size {size}: the kernel indexes an array of fixed size beyond its end"]
