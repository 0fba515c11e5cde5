"""The request to ``predict``, its checks, and its launch configs.

Owns the request, the checks of its sizes against kernel and device, and the local sizes that a
launch may have. ``arguments.py`` owns the arguments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llmperf_common.config import ConfigError
from llmperf_common.features.least_time import DenseAccess
from llmperf_common.features.regimes import regime_of
from llmperf_common.features.work import Work
from llmperf_common.files.visible import shortened
from llmperf_common.ids import sample_id
from llmperf_common.records import (
    Device,
    LaunchConfig,
    Signature,
    Strategy,
    launch_argument_json,
)
from trainer.errors import BadInput
from trainer.prediction.arguments import Filled, Filler
from trainer.run.loaded import LoadedRun
from trainer.run.shipped import shipped_run

_MOST_DIVISORS = 12
"""If a dimension of a 2-D or 3-D launch has more divisors than this, only local sizes that are
powers of two are compared in this dimension."""

MAX_WORK_ITEMS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLaunches:
    """The counted work of launches, in their order (None: not counted), and why some have none."""

    work: Sequence[Work | None]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """One request to a trained run.

    Attributes:
        kernel: name of the kernel.
        signature: signature of the kernel.
        global_size: work-items by dimension, 1 to 3 dimensions.
        local_size: work-items of a work-group by dimension.
        filler: completes the arguments of a launch.
        device: device class; None takes the run's only device class.
        sweep: also return the times of all legal local sizes.
        name: name of the launch in messages; empty if there is only one launch.
        compare: also predict the other local sizes, to find the best one; ``sweep`` implies it.
        kernel_id: part of the launches' ids.
        source: the kernel's source, for models that read text.
        build_options: the compiler's options, such as ``-D`` macros.
        dense: the memory that every launch of the kernel certainly accesses. No prediction is
            shorter than the time of these accesses.
        count: counts the work of launches of the kernel; None: work is not counted.
    """

    kernel: str
    signature: Signature
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    filler: Filler
    device: str | None = None
    sweep: bool = False
    compare: bool = True
    name: str = ""
    kernel_id: str | None = None
    source: str | None = None
    build_options: str = ""
    dense: tuple[DenseAccess, ...] = ()
    count: Callable[[Sequence[LaunchConfig]], CountedLaunches] | None = None


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Put the launch's ``name`` before the message of a BadInput.

    Raises:
        BadInput: The block raised it.
    """
    try:
        yield
    except BadInput as error:
        if not name:
            raise
        raise BadInput(f"{name}: {error}") from None


def check_sizes(
    kernel: str,
    signature: Signature,
    total: tuple[int, ...],
    local: tuple[int, ...],
    device: Device,
) -> None:
    """Check that the NDRange can be launched.

    Args:
        kernel: name of the kernel.
        signature: signature of the kernel.
        total: global size.
        local: local size.
        device: record of the device, with its limits.

    Raises:
        BadInput: The NDRange cannot be launched; the message names the limit and, if there is one,
            a legal size.
    """
    if not 1 <= len(total) <= 3:
        raise BadInput(f"--global-size {_text(total)}: give 1 to 3 sizes")
    if len(local) != len(total):
        raise BadInput(
            f"--local-size {_text(local)} has {len(local)} dimensions, but --global-size "
            f"{_text(total)} has {len(total)}: give the same number"
        )
    if min(*total, *local) < 1:
        raise BadInput(
            f"--global-size {_text(total)} and --local-size {_text(local)}: each size must be at "
            "least 1"
        )
    if math.prod(total) > MAX_WORK_ITEMS:
        raise BadInput(
            f"--global-size {_text(total)}: more than {MAX_WORK_ITEMS:,} work-items; give fewer, "
            "because no device runs that many"
        )
    required = signature.required_local_size
    if required is not None and _padded(local) != _padded(required):
        raise BadInput(
            f"--local-size {_text(local)}: kernel {shortened(kernel)!r} requires {_text(required)} "
            "(reqd_work_group_size)"
        )
    problem = _local_problem(local, device)
    if problem:
        raise BadInput(f"--local-size {_text(local)}: {problem}")
    for axis, (items, group) in enumerate(zip(total, local, strict=True)):
        if items % group:
            near = max(divisors(items, at_most=group))
            raise BadInput(
                f"--local-size {_text(local)}: dimension {axis}: {group} does not divide the "
                f"global size {items}; {near} does"
            )


def _padded(size: Sequence[int]) -> tuple[int, ...]:
    return (*size, *([1] * (3 - len(size))))


def _text(size: Sequence[int]) -> str:
    return ",".join(map(str, size))


def _local_problem(local: Sequence[int], device: Device) -> str:
    if math.prod(local) > device.max_work_group_size:
        return (
            f"{math.prod(local)} work-items are more than the {device.max_work_group_size} "
            f"a work-group of {device.device_class} may have"
        )
    for axis, size in enumerate(local):
        limits = device.max_work_item_sizes
        if axis < len(limits) and size > limits[axis]:
            return f"dimension {axis} of {device.device_class} takes at most {limits[axis]}"
    return ""


def launch_config(
    request: PredictRequest, filled: Filled, local_size: tuple[int, ...], device: Device
) -> LaunchConfig:
    """Return the launch of ``request`` at ``local_size``, with its regime on ``device``."""
    groups = math.prod(
        items // group for items, group in zip(request.global_size, local_size, strict=True)
    )
    return LaunchConfig(
        sample_id=sample_id(
            kernel_id=request.kernel_id or request.kernel,
            global_size=request.global_size,
            local_size=local_size,
            args=[launch_argument_json(item) for item in filled.args],
            device_class=device.device_class,
        ),
        global_size=request.global_size,
        local_size=local_size,
        args=filled.args,
        regime=regime_of(groups, device.compute_units),
        strategies=(Strategy.SIMPLE,),
        seed=0,
    )


def divisors(number: int, *, at_most: int) -> list[int]:
    """Return the divisors of ``number`` up to ``at_most``, ascending.

    >>> divisors(12, at_most=6)
    [1, 2, 3, 4, 6]
    """
    return [size for size in range(1, min(number, at_most) + 1) if number % size == 0]


def legal_local_sizes(request: PredictRequest, device: Device) -> Iterator[tuple[int, ...]]:
    """Yield the local sizes to compare: the request's, then all divisors within the limits.

    For a kernel with ``reqd_work_group_size`` only the request's size is yielded.
    """
    yield request.local_size
    if request.signature.required_local_size is not None:
        return
    limit = min(
        device.plain_work_group_size or device.max_work_group_size, device.max_work_group_size
    )
    by_axis = [
        _candidates(items, len(request.global_size), at_most=limit) for items in request.global_size
    ]
    for local in itertools.product(*by_axis):
        fits = math.prod(local) <= limit and not _local_problem(local, device)
        if local != request.local_size and fits:
            yield local


def _candidates(items: int, dims: int, *, at_most: int) -> list[int]:
    found = divisors(items, at_most=at_most)
    if dims > 1 and len(found) > _MOST_DIVISORS:
        return [size for size in found if size & (size - 1) == 0]
    return found


def device_of(run: LoadedRun, name: str | None) -> Device:
    """Return the record of a device class of the run; None takes the run's only device class.

    Raises:
        BadInput: The run does not know the device class.
        ConfigError: ``name`` is None and the run knows several device classes.
    """
    known = ", ".join(sorted(run.devices))
    if name is None:
        if len(run.devices) == 1:
            return next(iter(run.devices.values()))
        raise ConfigError(f"the model knows several device classes: pass --device, one of {known}")
    if name not in run.devices:
        ships = f", pass --model {name} (it comes with LLMPerf)" if shipped_run(name) else ""
        raise BadInput(
            f"--device {name}: the model was trained on {known}; choose one of these{ships}, or "
            f"train on data of {name}"
        )
    return run.devices[name]
