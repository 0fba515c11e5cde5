"""Conversion of packs to arrays of token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.tokens import Tokens
from trainer.packing.batch import PackBatch
from trainer.packing.packs import Indices, Packs, members, starts_of

NO_KERNEL = -1
NO_LAUNCH = -1


def pack_batch(packs: Packs, tokens: Tokens, *, num_launches: int | None = None) -> PackBatch:
    """Return packs of one length as a batch.

    The tokens of a pack are its parts and then padding. The tokens of a part are its prefix and
    then its suffixes.

    Args:
        packs: b packs, at least one, all of one length t.
        tokens: the tokens of their launches.
        num_launches: maximum number of launches of a pack (m of the batch); None takes the largest
            number that one of ``packs`` has.

    Raises:
        ValueError: The packs differ in length, there is no pack, or a pack has too many launches
            or tokens.
    """
    if len(packs) == 0 or np.any(packs.length != packs.length[0]):
        raise ValueError("a batch needs at least one pack, and its packs must have the same length")
    length = int(packs.length[0])
    capacity = int(np.max(packs.num_launches)) if num_launches is None else num_launches
    if np.any(packs.num_launches > capacity):
        raise ValueError(
            f"a pack has {np.max(packs.num_launches)} launches, but its capacity is {capacity}"
        )
    segments = _Segments(packs, tokens)
    if np.any(segments.place + segments.count > length):
        raise ValueError(f"a pack has more than {length} tokens")
    shape = (len(packs), length)
    target = members(segments.pack * length + segments.place, segments.count)
    ids, values = segments.texts(tokens)
    within = members(np.zeros_like(segments.count), segments.count)
    pack_of_launch = packs.pack_of_part[packs.part_of_launch]
    slot = pack_of_launch * capacity + segments.suffix[segments.is_suffix] - 1
    last = (segments.place + segments.count - 1)[segments.is_suffix]
    return PackBatch(
        ids=_filled(shape, target, ids, np.int32),
        values=_filled(shape, target, values, np.float64),
        position=_filled(shape, target, within + segments.per_token(segments.position), np.int32),
        kernel=_filled(shape, target, segments.per_token(segments.kernel), np.int32, NO_KERNEL),
        suffix=_filled(shape, target, segments.per_token(segments.suffix), np.int32),
        query=_filled((len(packs), capacity), slot, last, np.int32),
        row=_filled((len(packs), capacity), slot, packs.launch, np.int64, NO_LAUNCH),
    )


class _Segments:
    """The segments (prefixes and suffixes) of packs, in their order; arrays of shape (q + n,).

    Attributes:
        is_suffix: whether the segment is a suffix; the k-th suffix is launch k of the packs.
        source: start of the segment in ``prefix_ids`` or ``suffix_ids``.
        count: number of tokens.
        pack: index of its pack.
        place: start of the segment in its pack.
        kernel: number of its part within the pack.
        suffix: number of its launch within the pack from 1; 0 for a prefix.
        position: position id of its first token.
    """

    def __init__(self, packs: Packs, tokens: Tokens) -> None:
        num_parts, num_launches = len(packs.kernel), len(packs.launch)
        part = packs.part_of_launch
        prefix_at = np.arange(num_parts) + packs.launch_start[:-1]
        suffix_at = np.arange(num_launches) + part + 1
        prefix_length = tokens.prefix_start[packs.kernel + 1] - tokens.prefix_start[packs.kernel]
        suffix_length = tokens.suffix_start[packs.launch + 1] - tokens.suffix_start[packs.launch]

        def both(of_prefix: Indices | int, of_suffix: Indices | int) -> Indices:
            merged = np.zeros(num_parts + num_launches, dtype=np.int64)
            merged[prefix_at] = of_prefix
            merged[suffix_at] = of_suffix
            return merged

        pack = packs.pack_of_part
        number = np.arange(num_parts) - packs.part_start[pack]
        first_launch = packs.launch_start[packs.part_start[:-1]]
        self.is_suffix = both(0, 1).astype(bool)
        self.source = both(tokens.prefix_start[packs.kernel], tokens.suffix_start[packs.launch])
        self.count = both(prefix_length, suffix_length)
        self.pack = both(pack, pack[part])
        self.kernel = both(number, number[part])
        self.suffix = both(0, np.arange(num_launches) - first_launch[pack[part]] + 1)
        self.position = both(0, prefix_length[part])
        begin = starts_of(self.count)
        first_segment = packs.part_start[:-1] + first_launch
        self.place = begin[:-1] - begin[first_segment[self.pack]]

    def per_token(self, amount: Indices) -> Indices:
        """Repeat each segment's number for each token of the segment."""
        return np.repeat(amount, self.count)

    def texts(self, tokens: Tokens) -> tuple[Indices, npt.NDArray[np.float64]]:
        """Return the id and the number of each token, in the order of the segments."""
        source = members(self.source, self.count)
        of_suffix = self.per_token(self.is_suffix.astype(np.int64)).astype(bool)
        ids = np.empty(len(source), dtype=np.int64)
        values = np.zeros(len(source), dtype=np.float64)
        ids[~of_suffix] = tokens.prefix_ids[source[~of_suffix]]
        ids[of_suffix] = tokens.suffix_ids[source[of_suffix]]
        values[of_suffix] = tokens.suffix_values[source[of_suffix]]
        return ids, values


def _filled(
    shape: tuple[int, int], target: Indices, amount: npt.NDArray[Any], kind: type, empty: int = 0
) -> npt.NDArray[Any]:
    flat: npt.NDArray[Any] = np.full(shape[0] * shape[1], empty, dtype=kind)
    flat[target] = amount
    return flat.reshape(shape)
