"""Which kernels are near duplicates of each other, and the family id that says so.

Owns the candidate search (MinHash LSH), the exact check (Jaccard) and the components. The normal form is in
``tokens.py`` and ``shingles.py``. Does not own what families are used for: ``splits.py`` keeps one on one side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from llmperf_common.families.shingles import NUM_VIEWS, Hashes, Views, digest, jaccard, views_of

MIN_JACCARD = 0.85
"""Sources whose shingles overlap by at least this share, in one of their views, are one family."""
_LSH_BANDS, _LSH_ROWS = 18, 7
"""A pair is a candidate if one of the bands agrees in all its rows: at MIN_JACCARD 999 of 1,000 pairs are, at an
overlap of a half 13 of 100. datasketch's own choice for a threshold of 75 % missed every tenth pair, and a candidate
missed is a duplicate across a split."""
_NUM_PERMUTATIONS = _LSH_BANDS * _LSH_ROWS
_SHINGLES_AT_ONCE = 4096
"""MinHash takes a kilobyte for each."""
MAX_SOURCE_CHARS = 2**20
"""A longer source is alike only to its equal: tokens are made in the process that builds the corpus, and no kernel
written by hand is as long."""
_MINHASH_SEED = 1
_MAX_ALL_PAIRS = 300
"""Up to so many different sources every pair is compared: faster than loading datasketch."""


def assign_families(kernels: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Return the family of each kernel: the smallest kernel_id of its near-duplicate component.

    Kernels of one source text are one family. The result depends on the set of kernels only, not on their
    order; adding kernels can merge families, so it is recomputed whenever sets are merged or split.

    Args:
        kernels: (kernel_id, source, name); the name is not looked at. A kernel without a source is a
            family of its own.

    Returns:
        kernel_id to family_id.
    """
    members: dict[bytes, list[str]] = {}
    distinct: list[Views] = []
    by_text: dict[str, bytes] = {}
    families: dict[str, str] = {}
    for kernel_id, source, _name in sorted(kernels):
        if not source.strip():
            families[kernel_id] = kernel_id
            continue
        key = by_text.get(source)
        if key is None:
            views = compared_views(source)
            key = by_text.setdefault(source, digest(views))
            if key not in members:
                distinct.append(views)
        # Kernels come by id, so the first member of each list is its smallest, and the lists are in order.
        members.setdefault(key, []).append(kernel_id)
    parents = _components(distinct)
    groups = list(members.values())
    for index, group in enumerate(groups):
        # The root of a component is its lowest index, which holds its smallest id.
        families.update(dict.fromkeys(group, groups[_find(parents, index)][0]))
    return families


def family_sizes(families: Mapping[str, str]) -> dict[str, int]:
    """Return the number of kernels of each family."""
    sizes: dict[str, int] = {}
    for family in families.values():
        sizes[family] = sizes.get(family, 0) + 1
    return sizes


def compared_views(source: str) -> Views:
    """Return what a source is compared by: its token runs, or one hash of a source that is too long to tokenise."""
    if len(source) <= MAX_SOURCE_CHARS:
        return views_of(source)
    text = hashlib.blake2b(source.encode("utf-8", "replace"), digest_size=8).digest()
    whole = np.frombuffer(text, np.uint64)
    return whole, whole


def _components(distinct: Sequence[Views]) -> list[int]:
    """Return the parents of a forest whose trees are the near-duplicate components; a root is the lowest index."""
    parents = list(range(len(distinct)))
    for view in range(NUM_VIEWS):
        sets = [views[view] for views in distinct]
        candidates = _all_pairs if len(sets) <= _MAX_ALL_PAIRS else _sketched_pairs
        for first, second in candidates(sets):
            # In a large family most pairs are joined by others already.
            joined = _find(parents, first) == _find(parents, second)
            if not joined and jaccard(sets[first], sets[second]) >= MIN_JACCARD:
                _unite(parents, first, second)
    return parents


def _sketched_pairs(sets: Sequence[Hashes]) -> Iterable[tuple[int, int]]:
    # Imported here: datasketch loads scipy, which takes a second.
    from datasketch import MinHash, MinHashLSH  # noqa: PLC0415

    index = MinHashLSH(num_perm=_NUM_PERMUTATIONS, params=(_LSH_BANDS, _LSH_ROWS))
    model = MinHash(num_perm=_NUM_PERMUTATIONS, seed=_MINHASH_SEED, hashfunc=int)
    for position, one in enumerate(sets):
        sketch = model.copy()
        for start in range(0, len(one), _SHINGLES_AT_ONCE):
            # The shingles are hashes already; MinHash wants 32 bits.
            sketch.update_batch((one[start : start + _SHINGLES_AT_ONCE] >> 32).tolist())
        for candidate in index.query(sketch):
            yield candidate, position
        index.insert(position, sketch)


def _all_pairs(sets: Sequence[Hashes]) -> Iterable[tuple[int, int]]:
    for second, one in enumerate(sets):
        for first in range(second):
            # The sizes alone bound the overlap.
            few, many = sorted((len(sets[first]), len(one)))
            if few >= MIN_JACCARD * many:
                yield first, second


def _find(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _unite(parents: list[int], first: int, second: int) -> None:
    a, b = _find(parents, first), _find(parents, second)
    parents[max(a, b)] = min(a, b)
