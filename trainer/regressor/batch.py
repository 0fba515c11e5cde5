"""Batches of packs and queries as tensors, the input of the model.

Owns the conversion of numpy batches (``trainer.packing.batch``) to tensors on a device, and of
numbers to the parts that the numeric tokens embed (logarithm, sign, remainders). Numbers are split
here in float64, because float32 loses the low bits of sizes above 2**24.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from trainer.packing.batch import PackBatch, QueryBatch

Floats = npt.NDArray[np.floating[Any]]
Device = torch.device | str

NOT_AN_INTEGER = -1
"""Stands for the remainder of a number that is not an integer."""


class _Movable:
    """Base of frozen dataclasses of tensors, with a method that moves all tensors to a device."""

    __slots__ = ()

    def to(self, device: Device) -> Self:
        """Return a copy on ``device``."""
        moved = {
            field.name: getattr(self, field.name).to(device)
            for field in fields(self)  # type: ignore[arg-type]
        }
        return type(self)(**moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(_Movable):
    """The parts of numbers v that the numeric embedding reads; all tensors have the same shape.

    Attributes:
        log2: log2(1 + abs(v)), float32.
        sign: 0 for zero, 1 for positive, 2 for negative numbers.
        remainder_32: v modulo 32, in [0, 32); ``NOT_AN_INTEGER`` for a fraction.
        remainder_128: v modulo 128, in [0, 128); ``NOT_AN_INTEGER`` for a fraction.
    """

    log2: torch.Tensor
    sign: torch.Tensor
    remainder_32: torch.Tensor
    remainder_128: torch.Tensor

    def of(self, kernel: int) -> Numbers:
        """Return the numbers at index ``kernel`` of the first dimension."""
        return Numbers(
            log2=self.log2[kernel],
            sign=self.sign[kernel],
            remainder_32=self.remainder_32[kernel],
            remainder_128=self.remainder_128[kernel],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBatch(_Movable):
    """A ``PackBatch`` as tensors: b packs of t tokens, at most m launches of f features each.

    Attributes:
        ids: token ids, shape (b, t), int64; negative ids are numeric tokens.
        numbers: the numbers of numeric tokens, shape (b, t).
        position: position ids, shape (b, t), int64.
        kernel: kernel of each token, shape (b, t), int64; -1 in padding.
        suffix: 0 in a prefix, else the suffix's number within its pack, shape (b, t), int64.
        query: index of each launch's last token in its pack, shape (b, m), int64.
        present: which of the m places of a pack hold a launch, shape (b, m), bool.
        features: launch features, shape (b, m, f), float32; NaN if unknown, 0 without a launch.
        offset: log2(ns) that the model corrects, shape (b, m), float32; 0 without a launch.
    """

    ids: torch.Tensor
    numbers: Numbers
    position: torch.Tensor
    kernel: torch.Tensor
    suffix: torch.Tensor
    query: torch.Tensor
    present: torch.Tensor
    features: torch.Tensor
    offset: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchQueryBatch(_Movable):
    """``QueryBatch`` on a device: g kernels of at most t tokens, at most k launches each.

    A launch has at most s tokens and f features.

    Attributes:
        prefix_ids: token ids of the kernels, shape (g, t), int64.
        prefix_present: which prefix tokens are not padding, shape (g, t), bool.
        suffix_ids: token ids of the suffixes, shape (g, k, s), int64.
        suffix_numbers: the numbers of numeric tokens, shape (g, k, s).
        suffix_present: which suffix tokens are not padding, shape (g, k, s), bool.
        present: which of the k places of a kernel hold a launch, shape (g, k), bool.
        features: as in ``TorchBatch``, shape (g, k, f).
        offset: as in ``TorchBatch``, shape (g, k).
    """

    prefix_ids: torch.Tensor
    prefix_present: torch.Tensor
    suffix_ids: torch.Tensor
    suffix_numbers: Numbers
    suffix_present: torch.Tensor
    present: torch.Tensor
    features: torch.Tensor
    offset: torch.Tensor


AnyBatch = TorchBatch | TorchQueryBatch


def split_numbers(values: npt.NDArray[np.float64]) -> Numbers:
    """Return the parts of numbers that the numeric embedding reads.

    Remainders are exact for every integer that a float64 holds. NaN counts as 0, an infinity as
    the largest float64 of its sign.

    >>> numbers = split_numbers(np.array([2.0**40 + 1, 0.5]))
    >>> numbers.remainder_128.tolist(), numbers.sign.tolist()
    ([1, -1], [1, 1])
    """
    finite = np.nan_to_num(values)
    whole = finite == np.trunc(finite)

    def remainder(divisor: int) -> torch.Tensor:
        rest = np.where(whole, np.mod(finite, divisor), NOT_AN_INTEGER)
        return torch.from_numpy(rest.astype(np.int64))

    sign = np.where(finite > 0, 1, np.where(finite < 0, 2, 0))
    return Numbers(
        log2=torch.from_numpy((np.log1p(np.abs(finite)) / np.log(2)).astype(np.float32)),
        sign=torch.from_numpy(sign.astype(np.int64)),
        remainder_32=remainder(32),
        remainder_128=remainder(128),
    )


def to_torch(batch: PackBatch, features: Floats, offset: Floats, device: Device) -> TorchBatch:
    """Return packs as tensors on ``device``.

    Args:
        batch: a batch of b packs; its ``row`` indexes ``features`` and ``offset``.
        features: launch features of all rows, shape (n, f).
        offset: offsets of all rows in log2(ns), shape (n,).
        device: device of the tensors.
    """
    present = batch.row >= 0
    return TorchBatch(
        ids=_whole(batch.ids),
        numbers=split_numbers(batch.values),
        position=_whole(batch.position),
        kernel=_whole(batch.kernel),
        suffix=_whole(batch.suffix),
        query=_whole(batch.query),
        present=torch.from_numpy(present),
        features=_rows(features, batch.row),
        offset=_rows(offset, batch.row),
    ).to(device)


def to_torch_query(
    batch: QueryBatch, features: Floats, offset: Floats, device: Device
) -> TorchQueryBatch:
    """Return kernels and their launches as tensors on ``device``; arguments as in ``to_torch``."""
    return TorchQueryBatch(
        prefix_ids=_whole(batch.prefix_ids),
        prefix_present=_filled(batch.prefix_length, batch.prefix_ids.shape[-1]),
        suffix_ids=_whole(batch.suffix_ids),
        suffix_numbers=split_numbers(batch.suffix_values),
        suffix_present=_filled(batch.suffix_length, batch.suffix_ids.shape[-1]),
        present=torch.from_numpy(batch.row >= 0),
        features=_rows(features, batch.row),
        offset=_rows(offset, batch.row),
    ).to(device)


def _whole(array: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _filled(length: npt.NDArray[np.int32], most: int) -> torch.Tensor:
    """Return which of ``most`` places are below ``length``, shape (*length.shape, most), bool."""
    return torch.from_numpy(np.arange(most) < length[..., None])


def _rows(values: Floats, row: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return ``values[row]``, shape (*row, ...), float32; zeros where the row is negative."""
    taken = np.zeros((*row.shape, *values.shape[1:]), dtype=np.float32)
    present = row >= 0
    taken[present] = values[row[present]]
    return torch.from_numpy(taken)
