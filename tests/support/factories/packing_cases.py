"""Launches as tokens for tests of packing: small by Hypothesis, or with a real corpus's lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from trainer.data.tokens import Tokens
from trainer.packing.packs import Packs, starts_of

PREFIX_QUANTILES = (20, 42, 55, 128, 364, 894, 1000, 1000)
"""Tokens of a prefix at 0, 10, 25, 50, 75, 90, 95 and 100 % of the 6,030 kernels of a collected
H200 corpus, at three characters a token and cut to 1,000."""

SHARES = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1)


def make_tokens(
    prefixes: Sequence[int], suffixes: Sequence[int], group: Sequence[int], seed: int = 0
) -> Tokens:
    """Return launches of these lengths with random ids; a third of suffix tokens are numeric."""
    rng = np.random.default_rng(seed)
    num_suffix = int(sum(suffixes))
    numeric = rng.random(num_suffix) < 1 / 3
    ids = rng.integers(1, 500, num_suffix).astype(np.int32)
    return Tokens(
        prefix_ids=rng.integers(1, 500, int(sum(prefixes))).astype(np.int32),
        prefix_start=starts_of(prefixes),
        suffix_ids=np.where(numeric, -ids, ids).astype(np.int32),
        suffix_values=np.where(numeric, rng.random(num_suffix), 0.0),
        suffix_start=starts_of(suffixes),
        group=np.asarray(group, dtype=np.int64),
    )


def realistic(num_kernels: int, seed: int = 0, per_kernel: int = 68) -> Tokens:
    """Return launches with the lengths of a real corpus; suffixes have 10 to 40 tokens."""
    rng = np.random.default_rng(seed)
    prefixes = np.interp(rng.random(num_kernels), SHARES, PREFIX_QUANTILES).astype(int)
    counts = np.where(
        rng.random(num_kernels) < 0.75, per_kernel, rng.integers(1, per_kernel, num_kernels)
    )
    group = np.repeat(np.arange(num_kernels), counts)
    usual = rng.integers(12, 38, num_kernels)
    suffixes = usual[group] + rng.integers(-2, 3, len(group))
    order = rng.permutation(len(group))
    return make_tokens(prefixes.tolist(), suffixes[order].tolist(), group[order].tolist(), seed)


@st.composite
def small_tokens(draw: st.DrawFn, longest: int = 64, max_kernels: int = 8) -> Tokens:
    """Draw up to 40 launches of a few kernels; each fits into ``longest`` with its prefix."""
    prefixes = draw(st.lists(st.integers(0, longest - 10), min_size=1, max_size=max_kernels))
    group = draw(st.lists(st.integers(0, len(prefixes) - 1), min_size=1, max_size=40))
    suffixes = draw(st.lists(st.integers(1, 10), min_size=len(group), max_size=len(group)))
    return make_tokens(prefixes, suffixes, group, draw(st.integers(0, 3)))


def launches_by_pack(packs: Packs) -> list[list[tuple[int, list[int]]]]:
    """Return the kernel and launches of each part of each pack, as plain lists."""
    return [
        [
            (
                int(packs.kernel[part]),
                packs.launch[packs.launch_start[part] : packs.launch_start[part + 1]].tolist(),
            )
            for part in range(packs.part_start[pack], packs.part_start[pack + 1])
        ]
        for pack in range(len(packs))
    ]


def same_packs(one: Packs, other: Packs) -> bool:
    return one.length.tolist() == other.length.tolist() and launches_by_pack(
        one
    ) == launches_by_pack(other)
