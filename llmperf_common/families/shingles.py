"""A source as two sets of hashed token runs (shingles), whose overlap measures similarity.

Owns the two views of a source and their overlap. A run is five successive tokens, in which numbers
replace the names that the author chose. The first view numbers the names over the whole source, the
second view within each run. If a line is inserted, all later numbers of the first view change, but
only few runs of the second view. The first view compares small kernels better. A run is stored as a
64-bit hash: among ten million runs the chance of a collision is below 1e-5.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from llmperf_common.families.tokens import is_builtin, number_class, tokenize

SHINGLE_TOKENS = 5
NUM_VIEWS = 2
_NO_NAME = -1
_NAME_WORD = 0

Hashes = NDArray[np.uint64]
"""Hashes in ascending order, without repetition."""
Views = tuple[Hashes, Hashes]


def views_of(source: str) -> Views:
    """Return the hashed runs of SHINGLE_TOKENS tokens in both views; a short source is one run.

    >>> alike = views_of("x[i] = y[i];"), views_of("out[gid] = in[gid];")
    >>> [jaccard(a, b) for a, b in zip(*alike)]
    [1.0, 1.0]
    """
    words, numbers, gaps = _encoded(source)
    num_runs = max(1, len(words) - SHINGLE_TOKENS + 1)
    over_all = np.zeros(num_runs, dtype=np.uint64)
    within = np.zeros(num_runs, dtype=np.uint64)
    for place in range(min(SHINGLE_TOKENS, len(words))):
        part = slice(place, place + num_runs)
        is_name = numbers[part] != _NO_NAME
        factor = _FACTORS[place]
        over_all += factor * np.where(is_name, _mixed(numbers[part]), words[part])
        # A name that occurred before in this run is encoded by its distance, a new name by 0.
        back = np.where(gaps[part] <= place, gaps[part], 0)
        within += factor * np.where(is_name, _mixed(back), words[part])
    return np.unique(_mixed(over_all)), np.unique(_mixed(within))


def jaccard(first: Hashes, second: Hashes) -> float:
    """Return size of the intersection ÷ size of the union; 1.0 for two empty sets.

    >>> jaccard(np.array([1, 2], np.uint64), np.array([2, 3], np.uint64))
    0.3333333333333333
    """
    common = len(np.intersect1d(first, second, assume_unique=True))
    union = len(first) + len(second) - common
    return common / union if union else 1.0


def digest(views: Views) -> bytes:
    """Return a key that two sources share if and only if their views are equal."""
    found = hashlib.blake2b(digest_size=16)
    for view in views:
        found.update(len(view).to_bytes(8, "little"))
        found.update(view.tobytes())
    return found.digest()


def _encoded(source: str) -> tuple[Hashes, NDArray[np.int64], NDArray[np.int64]]:
    """Return each token's hash, and each name's number and distance to its last occurrence."""
    words: list[int] = []
    numbers: list[int] = []
    gaps: list[int] = []
    known: dict[str, tuple[int, int]] = {}
    for position, token in enumerate(tokenize(source)):
        word = _word(token)
        words.append(word)
        if word != _NAME_WORD:
            numbers.append(_NO_NAME)
            gaps.append(0)
            continue
        number, last = known.get(token, (len(known), position - SHINGLE_TOKENS))
        known[token] = (number, position)
        numbers.append(number)
        gaps.append(position - last)
    return np.array(words, np.uint64), np.array(numbers, np.int64), np.array(gaps, np.int64)


@lru_cache(maxsize=1 << 17)
def _word(token: str) -> int:
    """Return the hash of a token's meaning; ``_NAME_WORD`` for a name that the author chose."""
    first = token[0]
    if first.isdigit() or (first == "." and token[1:2].isdigit()):
        meaning = number_class(token)
    elif first in "\"'":
        meaning = "text"
    elif (first.isalpha() or first == "_") and not is_builtin(token):
        return _NAME_WORD
    else:
        meaning = token
    return int.from_bytes(
        hashlib.blake2b(meaning.encode("utf-8", "replace"), digest_size=8).digest()
    )


def _mixed(values: NDArray[np.int64] | Hashes) -> Hashes:
    """Spread integers over 64 bits (the finaliser of splitmix64)."""
    found = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


_FACTORS = _mixed(np.arange(SHINGLE_TOKENS, dtype=np.uint64)) | np.uint64(1)
"""One factor for each position in a run, so that the order of tokens counts. Factors are odd, which
makes the multiplication reversible."""
