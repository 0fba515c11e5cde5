"""Checks of a ``tokenizer.json`` from an untrusted place, before ``tokenizers`` reads it.

Owns the limits on the memory that its tokens take, and on how much longer its normalizers and
pre-tokenizers may make a text. The worst cases of these steps are multiplied, so that a chain of
small ones cannot exceed the limit.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from trainer.prompt.foreign_model import bytes_of, check_pieces
from trainer.prompt.foreign_patterns import check_pattern

_MOST_STEPS = 32
"""Maximum number of normalizers and pre-tokenizers; Hugging Face's converters write at most ten."""
_MOST_GROWTH = 16
"""Maximum ratio of a text's bytes after and before all steps. Llama-2's and T5's reach 12 in the
worst case; for a usual source their ratio is about 1.5."""
_GROWTH = {
    "NFC": 1, "NFD": 1, "NFKC": 1, "NFKD": 1, "Nmt": 1, "Strip": 1, "StripAccents": 1,
    "Lowercase": 1, "BertNormalizer": 2, "ByteLevel": 2,
}  # fmt: skip
"""Maps normalizers that insert no text of their own to the factor by which they lengthen an ASCII
text (BertNormalizer: a Chinese text). Unicode's normal forms lengthen few characters, and only
once."""
_GROWTH_BEFORE_TOKENS = {"ByteLevel": 2, "Metaspace": 3}
"""Maps pre-tokenizers to the factor by which they lengthen a text; the others do not. Twelve
``ByteLevel`` in a chain make a text 4,000 times as long."""
_LONGEST_MAPPED_BYTES = 64
"""Maximum bytes that a Precompiled normalizer puts for a character; the longest of SentencePiece's
rules are 33."""

_MOST_ADDED = 50_000
"""Maximum number of added tokens; Gemma 3 has 6,400."""
_MOST_ADDED_BYTES = 2**20
"""Maximum bytes of all added tokens in UTF-8. The library takes 80 bytes of memory for each."""


def check_tokenizer(content: Any) -> None:
    """Raise ValueError if normalizers or tokens would make the library use gigabytes of memory.

    Content of another form raises KeyError, TypeError or AttributeError.

    Args:
        content: the value of a ``tokenizer.json``.
    """
    _check_growth(content.get("normalizer"), content.get("pre_tokenizer"))
    check_added(one["content"] for one in content.get("added_tokens") or ())
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, list):  # pairs of a token and its score: a Unigram model
        check_pieces([bytes_of(one[0]) for one in vocabulary])


def check_added(tokens: Iterable[str]) -> None:
    """Raise ValueError if there are too many added tokens, or if they are too long together."""
    lengths = [len(bytes_of(one)) for one in tokens]
    if len(lengths) > _MOST_ADDED or sum(lengths) > _MOST_ADDED_BYTES:
        raise ValueError(
            f"its {len(lengths):,} added tokens have {sum(lengths):,} bytes; at most "
            f"{_MOST_ADDED:,} tokens of {_MOST_ADDED_BYTES:,} bytes in all are allowed"
        )


def _check_growth(normalizer: Any, pre_tokenizer: Any) -> None:
    normalizers = _steps_of(normalizer, "normalizers")
    pre_tokenizers = _steps_of(pre_tokenizer, "pretokenizers")
    if len(normalizers) + len(pre_tokenizers) > _MOST_STEPS:
        raise ValueError(f"it has more than {_MOST_STEPS} normalizers and pre-tokenizers")
    for one in (*normalizers, *pre_tokenizers):
        if isinstance(pattern := one.get("pattern"), dict) and "Regex" in pattern:
            check_pattern(pattern["Regex"])
    growth = prod(map(_growth_of, normalizers))
    growth *= prod(_GROWTH_BEFORE_TOKENS.get(one["type"], 1) for one in pre_tokenizers)
    if growth > _MOST_GROWTH:
        raise ValueError(
            f"its normalizers and pre-tokenizers can make a text {growth:.0f} times as long; at "
            f"most {_MOST_GROWTH} times is allowed"
        )


def _steps_of(step: Any, key: str) -> list[Any]:
    """Return the steps of a normalizer or pre-tokenizer; ``key`` names those of a Sequence."""
    found = []
    stack = [step]
    while stack:
        one = stack.pop()
        if one is None:
            continue
        if one["type"] == "Sequence":
            stack += one[key]
        else:
            found.append(one)
    return found


def _growth_of(one: Any) -> float:
    """Return the largest ratio of a text's bytes after and before a normalizer."""
    match one["type"]:
        case "Prepend":  # before each part of a text between two added tokens
            return 1 + len(bytes_of(one["prepend"]))
        case "Replace":
            longest = len(bytes_of(one["content"]))
            replaced = len(bytes_of(one["pattern"].get("String", "")))
            # A regular expression, too, may match between any two characters.
            return max(1, longest / replaced) if replaced else 1 + longest
        case "Precompiled":
            return _growth_of_map(base64.b64decode(one["precompiled_charsmap"], validate=True))
        case other if other in _GROWTH:
            return _GROWTH[other]
        case other:
            raise ValueError(f"its normalizer {str(other)[:40]!r} is not supported")


def _growth_of_map(data: bytes) -> float:
    """Return the growth of an ASCII text by a SentencePiece map of characters.

    The map consists of the length of a trie in bytes, the trie (a double array of darts-clone), and
    the replacement texts, each followed by a zero byte. The library does not check the positions in
    trie and texts, so they are checked here.

    Raises:
        ValueError: A position is outside of the map, or a text is too long.
    """
    num_bytes = int.from_bytes(data[:4], "little")
    units = np.frombuffer(data[4 : 4 + num_bytes], dtype="<u4").astype(np.int64)
    texts = data[4 + num_bytes :]
    texts.decode()
    damaged = ValueError("its Precompiled normalizer is damaged")
    if not len(units) or units[0] >> 31 or texts[-1:] != b"\0":
        raise damaged
    if max(map(len, texts.split(b"\0"))) > _LONGEST_MAPPED_BYTES:
        raise ValueError(
            f"its Precompiled normalizer puts more than {_LONGEST_MAPPED_BYTES} bytes for a "
            "character"
        )
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
    is_node = units >> 31 == 0
    if (children[is_node] | 255).max() >= len(units):
        raise damaged
    starts = units[children[is_node & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    if (starts >= len(texts)).any():
        raise damaged
    if (np.frombuffer(texts, np.uint8)[starts] & 0xC0 == 0x80).any():  # within a character
        raise damaged
    growth = 1
    for character in range(1, 128):
        place = children[0] ^ character
        if units[place] & 0x800000FF == character and units[place] >> 8 & 1:
            start = int(units[children[place]] & 0x7FFFFFFF)
            growth = max(growth, texts.index(b"\0", start) - start)
    return growth
