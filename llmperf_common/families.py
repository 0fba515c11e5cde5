"""Which kernels are near duplicates of each other, and the family id that says so.

Owns the candidate search (MinHash LSH), the exact check (Jaccard) and the components. The normal form is in
``tokens.py`` and ``shingles.py``. Does not own what families are used for: ``splits.py`` keeps one on one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llmperf_common.shingles import NUM_VIEWS, Hashes, Views, digest, jaccard, views_of

MIN_JACCARD = 0.85
"""Sources whose shingles overlap by at least this share, in one of their views, are one family."""
_LSH_THRESHOLD = 0.75
"""Below MIN_JACCARD: MinHash only estimates, and a candidate missed is a duplicate across a split."""
_NUM_PERMUTATIONS = 128
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
            views = views_of(source)
            key = by_text.setdefault(source, digest(views))
            if key not in members:
                distinct.append(views)
        # Kernels come by id, so the first member of each list is its smallest, and the lists are in order.
        members.setdefault(key, []).append(kernel_id)
    parents = list(range(len(distinct)))
    for first, second in _confirmed_pairs(distinct):
        _unite(parents, first, second)
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


def _confirmed_pairs(distinct: Sequence[Views]) -> Iterable[tuple[int, int]]:
    for view in range(NUM_VIEWS):
        sets = [views[view] for views in distinct]
        candidates = _all_pairs if len(sets) <= _MAX_ALL_PAIRS else _sketched_pairs
        for first, second in candidates(sets):
            if jaccard(sets[first], sets[second]) >= MIN_JACCARD:
                yield first, second


def _sketched_pairs(sets: Sequence[Hashes]) -> Iterable[tuple[int, int]]:
    # Imported here: datasketch loads scipy, which takes a second.
    from datasketch import MinHash, MinHashLSH  # noqa: PLC0415

    index = MinHashLSH(threshold=_LSH_THRESHOLD, num_perm=_NUM_PERMUTATIONS)
    model = MinHash(num_perm=_NUM_PERMUTATIONS, seed=_MINHASH_SEED, hashfunc=int)
    for position, one in enumerate(sets):
        sketch = model.copy()
        # The shingles are hashes already; MinHash wants 32 bits.
        sketch.update_batch((one >> 32).tolist())
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
