"""The arrays that a forward pass reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBatch:
    """A batch of b packs of t tokens with at most m launches each.

    A token attends to itself and to the earlier tokens of its pack that are of the same kernel and
    belong to the prefix or to the token's own suffix. Padding tokens have kernel -1 and attend to
    themselves only.

    Attributes:
        ids: token ids (``trainer.data.tokens``), shape (b, t); 0 in padding.
        values: numbers of numeric tokens, shape (b, t).
        position: position ids, shape (b, t): a suffix starts at its prefix's length.
        kernel: number of the token's kernel within the pack, shape (b, t); -1 in padding.
        suffix: 0 in a prefix, else the suffix's number within the pack from 1, shape (b, t).
        query: index of each launch's last token, shape (b, m); 0 without a launch.
        row: row of ``Tokens`` of each launch, shape (b, m); -1 without a launch.
    """

    ids: Int32s
    values: npt.NDArray[np.float64]
    position: Int32s
    kernel: Int32s
    suffix: Int32s
    query: Int32s
    row: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBatch:
    """A batch of g kernels of at most t tokens, with at most k launches of at most s tokens each.

    A kernel is encoded once. A launch reads the encoded kernel and its own suffix, but no other
    launch. Kernels without tokens and launches are padding of the batch.

    Attributes:
        prefix_ids: token ids of the kernels, shape (g, t); 0 from ``prefix_length`` on.
        prefix_length: tokens of each kernel, shape (g,); 0 in padding.
        suffix_ids: token ids of the launches, shape (g, k, s); 0 from ``suffix_length`` on.
        suffix_values: numbers of numeric tokens, shape (g, k, s).
        suffix_length: tokens of each launch, shape (g, k); 0 without a launch.
        row: row of ``Tokens`` of each launch, shape (g, k); -1 without a launch.
    """

    prefix_ids: Int32s
    prefix_length: Int32s
    suffix_ids: Int32s
    suffix_values: npt.NDArray[np.float64]
    suffix_length: Int32s
    row: npt.NDArray[np.int64]
