"""Launch configs as columns of numbers: the common form behind the feature vector.

Owns that form and its construction from records (one kernel, n launches, one device).
``table_columns.py`` constructs it from dataset tables. A test checks that both give equal columns,
so a model sees the same numbers in training and ``predict``. ``features.py`` makes features from
the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic

from llmperf_common.features.work import WORK_NAMES, Work
from llmperf_common.files.json_numbers import number, numbers
from llmperf_common.launch import is_integer_scalar
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Device,
    DeviceClass,
    LaunchConfig,
    Signature,
)

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

MAX_DIMS = 3

DEVICE_NUMBERS = (
    "compute_units",
    "max_clock_mhz",
    "local_memory_bytes",
    "last_level_cache_bytes",
    "peak_dram_gbps",
    "peak_l2_gbps",
    "peak_fp32_gflops",
    "peak_fp64_gflops",
    "launch_floor_ns",
)
"""Fields of a device that features use; a value is NaN where the device lacks the field."""
GLOBAL_KINDS = (ArgumentKind.GLOBAL_BUFFER.value, ArgumentKind.CONSTANT_BUFFER.value)
READING = (Access.READ.value, Access.READ_WRITE.value)
WRITING = (Access.WRITE.value, Access.READ_WRITE.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchColumns:
    """n launches as arrays of shape (n,) unless stated otherwise.

    Attributes:
        dims: number of dimensions of the NDRange.
        global_size: global sizes in work-items, shape (n, 3); 1 in unused dimensions.
        local_size: local sizes in work-items, shape (n, 3); 1 in unused dimensions.
        buffer_bytes: bytes of all global and constant buffers.
        read_bytes: bytes of the global and constant buffers that the kernel may read.
        written_bytes: bytes of the buffers that the kernel may write.
        largest_buffer_bytes: bytes of the largest global or constant buffer.
        local_bytes: bytes of the ``__local`` arguments per work-group.
        scalar_max: largest integer scalar argument, at least 0; 0 without integer scalars.
        scalar_min: smallest integer scalar argument, at least 0; 0 without integer scalars.
        scalar_log2_product: log2 of the product of all integer scalar arguments above 1.
        static: the kernel's static features in the order of ``static_names``, shape (n, s); NaN
            where the kernel lacks the feature.
        device: the fields ``DEVICE_NUMBERS`` of the device, shape (n, d).
        work: the counts ``WORK_NAMES`` of the launch, shape (n, w); NaN where they are unknown.
    """

    dims: Floats
    global_size: Floats
    local_size: Floats
    buffer_bytes: Floats
    read_bytes: Floats
    written_bytes: Floats
    largest_buffer_bytes: Floats
    local_bytes: Floats
    scalar_max: Floats
    scalar_min: Floats
    scalar_log2_product: Floats
    static: Floats
    static_names: tuple[str, ...]
    device: Floats
    work: Floats

    def device_number(self, name: str) -> Floats:
        """Return one of ``DEVICE_NUMBERS`` for each launch, shape (n,); NaN where unknown.

        The name states the unit. Raises ValueError for a name that is not in ``DEVICE_NUMBERS``.
        """
        return self.device[:, DEVICE_NUMBERS.index(name)]

    def static_feature(self, name: str) -> Floats:
        """Return one static feature, shape (n,); all NaN if no feature has this name."""
        if name not in self.static_names:
            return np.full(len(self.dims), np.nan)
        return self.static[:, self.static_names.index(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentColumns:
    """The arguments of all launches in flat arrays, shape (a,); ``launch`` is each launch's row."""

    launch: Codes
    is_global: npt.NDArray[np.bool_]
    is_local: npt.NDArray[np.bool_]
    is_integer: npt.NDArray[np.bool_]
    reads: npt.NDArray[np.bool_]
    writes: npt.NDArray[np.bool_]
    bytes: Floats
    value: Floats


def columns_from_records(
    signature: Signature,
    launches: Sequence[LaunchConfig],
    device: Device | DeviceClass,
    static_names: Sequence[str],
    work: Sequence[Work | None] = (),
) -> LaunchColumns:
    """Return the columns of ``launches`` of one kernel on one device.

    Args:
        signature: signature of the kernel.
        launches: n launches.
        device: the device; peaks that it lacks become NaN.
        static_names: the static features to include, in order.
        work: counted work of each launch, None where it is unknown; empty if no launch was counted.

    Raises:
        ValueError: A launch's NDRange does not have 1 to 3 dimensions.
    """
    declared = {argument.position: argument for argument in signature.arguments}
    flat = [
        (row, item, declared.get(item.position))
        for row, launch in enumerate(launches)
        for item in launch.args
    ]
    arguments = ArgumentColumns(
        launch=np.array([row for row, _, _ in flat], dtype=np.int64),
        is_global=np.array([item.kind.value in GLOBAL_KINDS for _, item, _ in flat], dtype=bool),
        is_local=np.array([item.kind is ArgumentKind.LOCAL_BUFFER for _, item, _ in flat], bool),
        is_integer=np.array([_is_integer(item.kind.value, known) for _, item, known in flat], bool),
        reads=np.array([known is not None and known.access in READING for *_, known in flat], bool),
        writes=np.array(
            [known is not None and known.access in WRITING for *_, known in flat], bool
        ),
        bytes=np.array(
            [
                (item.elements or 0) * (known.element_bytes if known else 0)
                for _, item, known in flat
            ],
            dtype=np.float64,
        ),
        value=np.array(
            [np.nan if item.value is None else item.value for _, item, _ in flat], dtype=np.float64
        ),
    )
    features = signature.static_features
    static = np.array([float(features.get(name, np.nan)) for name in static_names])
    numbers = [getattr(device, name, None) for name in DEVICE_NUMBERS]
    known_numbers = np.array([np.nan if item is None else float(item) for item in numbers])
    return assemble(
        arguments,
        dims=np.array([len(launch.global_size) for launch in launches], dtype=np.float64),
        global_size=np.array(
            [_padded(launch.global_size) for launch in launches], dtype=np.float64
        ),
        local_size=np.array([_padded(launch.local_size) for launch in launches], dtype=np.float64),
        static=np.tile(static, (len(launches), 1)),
        static_names=tuple(static_names),
        device=np.tile(known_numbers, (len(launches), 1)),
        work=_work_matrix(work, len(launches)),
    )


def _work_matrix(work: Sequence[Work | None], num: int) -> Floats:
    rows = [
        [np.nan] * len(WORK_NAMES) if one is None else [getattr(one, name) for name in WORK_NAMES]
        for one in work or [None] * num
    ]
    return np.array(rows, dtype=np.float64).reshape(num, len(WORK_NAMES))


def _is_integer(kind: str, known: Argument | None) -> bool:
    return (
        kind == ArgumentKind.SCALAR and known is not None and is_integer_scalar(known.scalar_type)
    )


def _padded(size: Sequence[int]) -> list[int]:
    if not 1 <= len(size) <= MAX_DIMS:
        raise ValueError(f"NDRange {tuple(size)} must have 1 to {MAX_DIMS} dimensions")
    return [*size, *([1] * (MAX_DIMS - len(size)))]


def sums(owner: Codes, values: Floats, num: int) -> Floats:
    """Return the sum of ``values`` (shape (a,)) for each owner 0 ... num - 1, shape (num,)."""
    return np.bincount(owner, values, minlength=num).astype(np.float64)


def assemble(
    arguments: ArgumentColumns,
    *,
    dims: Floats,
    global_size: Floats,
    local_size: Floats,
    static: Floats,
    static_names: tuple[str, ...],
    device: Floats,
    work: Floats,
) -> LaunchColumns:
    """Return launch columns: each launch's arguments are summarised, other columns stay as is."""
    num = len(dims)

    def total(mask: npt.NDArray[np.bool_]) -> Floats:
        return sums(arguments.launch[mask], arguments.bytes[mask], num)

    largest = np.zeros(num)
    inside = arguments.is_global
    np.maximum.at(largest, arguments.launch[inside], arguments.bytes[inside])
    counted = arguments.is_integer & np.isfinite(arguments.value)
    owner, value = arguments.launch[counted], np.maximum(arguments.value[counted], 0.0)
    high, low = np.zeros(num), np.full(num, np.inf)
    np.maximum.at(high, owner, value)
    np.minimum.at(low, owner, value)
    return LaunchColumns(
        dims=dims,
        global_size=global_size,
        local_size=local_size,
        buffer_bytes=total(inside),
        read_bytes=total(inside & arguments.reads),
        written_bytes=total(inside & arguments.writes),
        largest_buffer_bytes=largest,
        local_bytes=total(arguments.is_local),
        scalar_max=high,
        scalar_min=np.where(np.isinf(low), 0.0, low),
        scalar_log2_product=sums(owner, np.log2(np.maximum(value, 1.0)), num),
        static=static,
        static_names=static_names,
        device=device,
        work=work,
    )


_POSITIVE = ("compute_units", "max_work_group_size")
_NOT_NEGATIVE = (
    "max_clock_mhz", "global_memory_bytes", "max_allocation_bytes", "local_memory_bytes",
    "last_level_cache_bytes", "plain_work_group_size", "timer_step_ns", "peak_dram_gbps",
    "peak_l2_gbps", "peak_fp32_gflops", "peak_fp64_gflops", "launch_floor_ns",
    "max_constant_buffer_bytes", "warp_size", "registers_per_unit", "local_memory_per_unit_bytes",
    "max_work_items_per_unit", "max_work_groups_per_unit", "memory_bus_bits",
    "max_memory_clock_mhz", "power_limit_w", "peak_dram_spread", "peak_l2_spread",
    "peak_fp32_spread", "peak_fp64_spread",
)  # fmt: skip
"""Fields of a device that may be 0: some runtimes report 0 for an unknown value."""
_MOST = 1e20
"""Maximum of each number of a device. No size or rate is as large, and products do not overflow."""


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Raise ValueError if a number of a device record is not finite, negative or too large."""
    try:
        for least, names in ((1, _POSITIVE), (0, _NOT_NEGATIVE)):
            for name in names:
                if values.get(name) is not None:
                    number(values[name], name, least=least, most=_MOST)
        numbers(list(values["max_work_item_sizes"]), "max_work_item_sizes", least=1, most=_MOST)
    except (TypeError, ValueError) as error:
        raise ValueError(f"device record: {error}") from None


_DEVICE: pydantic.TypeAdapter[Device] = pydantic.TypeAdapter(Device)


def device_from_mapping(values: Mapping[str, Any]) -> Device:
    """Return the record of one row of ``devices`` (or of ``device.json``).

    Raises:
        ValueError: A key is missing, or a value has a wrong type or is impossible.
    """
    known = set(Device.__slots__)
    content = {"max_work_item_sizes": (), **values}
    _check_numbers(content)
    try:
        return _DEVICE.validate_python(
            {name: value for name, value in content.items() if name in known}
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"device record: {error}") from None
