"""Families: groups of near-duplicate kernels, and the family id of each kernel.

Owns the candidate search (MinHash LSH), the exact check (Jaccard) and the connected components.
``tokens.py`` and ``shingles.py`` own the normal form of a source; ``splits.py`` keeps each family
in one part of a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from llmperf_common.families.shingles import NUM_VIEWS, Hashes, Views, digest, jaccard, views_of

MIN_JACCARD = 0.85
"""Lowest Jaccard similarity, in either view, at which two sources belong to one family."""
_LSH_BANDS, _LSH_ROWS = 18, 7
"""Number of MinHash bands, and of rows per band. A pair of sources is a candidate if all rows of a
band agree. This rule finds 999 of 1,000 pairs at MIN_JACCARD and 13 of 100 at a similarity of 0.5.
datasketch's own choice for a threshold of 75 % missed one pair in ten, and every missed pair may
put duplicates on both sides of a split."""
_NUM_PERMUTATIONS = _LSH_BANDS * _LSH_ROWS
_SHINGLES_AT_ONCE = 4096
"""Number of shingles hashed at once. MinHash takes 1 KB of memory for each shingle."""
MAX_SOURCE_CHARS = 2**20
"""Number of characters above which a source is only compared for equality. Sources are tokenised in
the process that builds the corpus, so their length must be limited. No hand-written kernel is as
long."""
_MINHASH_SEED = 1
_MAX_ALL_PAIRS = 300
"""Number of distinct sources up to which all pairs are compared, because that is faster than
loading datasketch."""


def assign_families(kernels: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Return the family of each kernel: the smallest kernel_id of its near-duplicate component.

    Kernels with the same source text are in one family. The result depends on the set of kernels,
    not on their order. A further kernel can join two families into one, so compute families again
    when sets of kernels are merged or split.

    Args:
        kernels: (kernel_id, source, name); name is ignored. A kernel without source is a
            family of its own.

    Returns:
        A mapping from kernel_id to family_id.
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
        # Kernels are sorted by id, so the first member of each list is the smallest, and the lists
        # are in order of their first members.
        members.setdefault(key, []).append(kernel_id)
    parents = _components(distinct)
    groups = list(members.values())
    for index, group in enumerate(groups):
        # The root of a component is its lowest index, and the kernel at that index has the smallest
        # id.
        families.update(dict.fromkeys(group, groups[_find(parents, index)][0]))
    return families


def family_sizes(families: Mapping[str, str]) -> dict[str, int]:
    """Return the number of kernels of each family."""
    sizes: dict[str, int] = {}
    for family in families.values():
        sizes[family] = sizes.get(family, 0) + 1
    return sizes


def compared_views(source: str) -> Views:
    """Return a source's token runs in both views; one hash if it is too long to tokenise."""
    if len(source) <= MAX_SOURCE_CHARS:
        return views_of(source)
    text = hashlib.blake2b(source.encode("utf-8", "replace"), digest_size=8).digest()
    whole = np.frombuffer(text, np.uint64)
    return whole, whole


def _components(distinct: Sequence[Views]) -> list[int]:
    """Return a union-find forest whose trees are the components; the root is the lowest index."""
    parents = list(range(len(distinct)))
    for view in range(NUM_VIEWS):
        sets = [views[view] for views in distinct]
        candidates = _all_pairs if len(sets) <= _MAX_ALL_PAIRS else _sketched_pairs
        for first, second in candidates(sets):
            # In a large family most pairs are already joined through other pairs: do not compare
            # them.
            joined = _find(parents, first) == _find(parents, second)
            if not joined and jaccard(sets[first], sets[second]) >= MIN_JACCARD:
                _unite(parents, first, second)
    return parents


def _sketched_pairs(sets: Sequence[Hashes]) -> Iterable[tuple[int, int]]:
    # Imported here, because datasketch loads scipy, which takes a second.
    from datasketch import MinHash, MinHashLSH  # noqa: PLC0415

    index = MinHashLSH(num_perm=_NUM_PERMUTATIONS, params=(_LSH_BANDS, _LSH_ROWS))
    model = MinHash(num_perm=_NUM_PERMUTATIONS, seed=_MINHASH_SEED, hashfunc=int)
    for position, one in enumerate(sets):
        sketch = model.copy()
        for start in range(0, len(one), _SHINGLES_AT_ONCE):
            # The shingles are hashes already; MinHash takes hashes of 32 bits.
            sketch.update_batch((one[start : start + _SHINGLES_AT_ONCE] >> 32).tolist())
        for candidate in index.query(sketch):
            yield candidate, position
        index.insert(position, sketch)


def _all_pairs(sets: Sequence[Hashes]) -> Iterable[tuple[int, int]]:
    for second, one in enumerate(sets):
        for first in range(second):
            # Sets of very different sizes cannot reach the threshold.
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
