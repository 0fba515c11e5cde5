"""Sizes and arguments of many launches as flat arrays; suffixes of every form contain them.

Owns the conversion of ``Rows.samples``. Training and prediction use the same conversion, so that
both give the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.features.table_columns import flat_lists, ndrange_sizes
from trainer.interface import Codes, Floats
from trainer.prompt.kernel_text import KernelText

_WIDE_SIZE, _WIDE_VALUE = 2.0**31, -1.2345678901234567e-05
"""The size and the scalar value with the longest texts: ten digits, as the largest buffers of a 144
GB card have, and a float with all digits, a sign and an exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNumbers:
    """The n launches, with m arguments in all. Sizes are in work-items.

    Attributes:
        dims: dimensions of the NDRange, shape (n,).
        global_size: global sizes, shape (n, 3), 1 beyond the NDRange's dimensions.
        local_size: local sizes, shape (n, 3), 1 beyond the NDRange's dimensions.
        argument_start: first argument of each launch, then m, shape (n + 1,).
        position: position of each argument, shape (m,).
        amount: elements of a buffer or value of a scalar, finite, shape (m,).
        is_buffer: whether ``amount`` counts elements, shape (m,).
        limit: exclusive upper limit of a buffer's integers, if these integers steer the kernel;
            NaN for all other arguments, shape (m,).
    """

    dims: Codes
    global_size: Floats
    local_size: Floats
    argument_start: Codes
    position: Codes
    amount: Floats
    is_buffer: npt.NDArray[np.bool_]
    limit: Floats

    def __len__(self) -> int:
        return len(self.dims)

    @property
    def num_groups(self) -> Floats:
        """Number of work-groups by dimension, shape (n, 3)."""
        return np.ceil(self.global_size / self.local_size)


def launch_numbers(samples: pa.Table) -> LaunchNumbers:
    """Return the numbers of each row of ``samples`` (schema ``SAMPLES``).

    An argument with neither elements nor value is left out.

    Raises:
        ValueError: A row has an NDRange of 0 or of more than 3 dimensions.
    """
    dims, global_size = ndrange_sizes(samples.column("global_size"))
    _, local_size = ndrange_sizes(samples.column("local_size"))
    launch, items = flat_lists(samples.column("args"))
    elements, value = _numbers(items, "elements"), _member_or_nan(items, "value")
    is_buffer = ~np.isnan(elements)
    amount = np.where(is_buffer, elements, value)
    known = np.isfinite(amount)  # only nulls are left out: sample ids allow finite numbers only
    counts = np.bincount(launch[known], minlength=len(dims))
    return LaunchNumbers(
        dims=dims.astype(np.int64),
        global_size=global_size,
        local_size=local_size,
        argument_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        position=_numbers(items, "position").astype(np.int64)[known],
        amount=amount[known],
        is_buffer=is_buffer[known],
        limit=_member_or_nan(items, "contents_limit")[known],
    )


def widest_launches(kernels: Sequence[KernelText]) -> LaunchNumbers:
    """Return for each kernel a 3-D launch whose numbers have the longest texts."""
    arguments = [one for kernel in kernels for one in kernel.arguments]
    counts = [len(kernel.arguments) for kernel in kernels]
    sizes = np.full((len(kernels), 3), _WIDE_SIZE)
    return LaunchNumbers(
        dims=np.full(len(kernels), 3),
        global_size=sizes,
        local_size=np.ones_like(sizes),
        argument_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        position=np.array([one.position for one in arguments], dtype=np.int64),
        amount=np.array([_WIDE_SIZE if one.is_whole else _WIDE_VALUE for one in arguments]),
        is_buffer=np.array([one.is_buffer for one in arguments], dtype=bool),
        limit=np.full(len(arguments), np.nan),
    )


def _numbers(items: pa.StructArray, name: str) -> Floats:
    values = items.field(name).cast(pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _member_or_nan(items: pa.StructArray, name: str) -> Floats:
    """Return a member's numbers, NaN for null; all NaN if the (older) dataset lacks the member."""
    if items.type.get_field_index(name) < 0:
        return np.full(len(items), np.nan)
    return _numbers(items, name)
