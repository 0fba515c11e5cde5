"""Checks of a ``tokenizer.json`` from an untrusted place, before ``tokenizers`` reads it.

Owns which parts of the file the library gets to see, which steps (normalizers, pre-tokenizers and
decoders) are supported, and how much longer they may make a text. The worst cases of the steps are
multiplied, so that a chain of small ones cannot exceed the limit. ``foreign_model`` checks the
model and its tokens.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable
from math import prod
from typing import Any

import numpy as np

from trainer.prompt.foreign_model import bytes_of, check_parameters, checked_model
from trainer.prompt.foreign_patterns import check_pattern

_MOST_STEPS = 32
"""Maximum number of normalizers, pre-tokenizers and decoders in all; Hugging Face's converters write
at most 14."""
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
_PRE_TOKENIZERS = frozenset({
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace",
    "Punctuation", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
})  # fmt: skip
_DECODERS = frozenset({
    "BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Strip",
    "WordPiece",
})  # fmt: skip
_LONGEST_MAPPED_BYTES = 64
"""Maximum bytes that a Precompiled normalizer puts for a character; the longest of SentencePiece's
rules are 33."""

_MOST_ADDED = 50_000
"""Maximum number of added tokens; Gemma 3 has 6,400."""
_MOST_ADDED_BYTES = 2**20
"""Maximum bytes of all added tokens in UTF-8. The library takes 80 bytes of memory for each."""


def used_parts(content: Any) -> dict[str, Any]:
    """Return the parts of a ``tokenizer.json`` that the library needs to convert text and ids.

    The others (post-processor, truncation and padding) change no token of a text without special
    tokens, but can make the library panic.

    Args:
        content: the value of a ``tokenizer.json``.

    Raises:
        ValueError: A part is not supported, makes the library panic, or would make it use gigabytes
            of memory. Content of another form raises KeyError, TypeError or AttributeError.
    """
    normalizer, pre_tokenizer = content.get("normalizer"), content.get("pre_tokenizer")
    decoder, added = content.get("decoder"), content.get("added_tokens") or []
    _check_steps(normalizer, pre_tokenizer, decoder)
    check_added(one["content"] for one in added)
    return {
        "version": content.get("version"),
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": checked_model(content["model"]),
    }


def check_added(tokens: Iterable[str]) -> None:
    """Raise ValueError if there are too many added tokens, or if they are too long together."""
    lengths = [len(bytes_of(one)) for one in tokens]
    if len(lengths) > _MOST_ADDED or sum(lengths) > _MOST_ADDED_BYTES:
        raise ValueError(
            f"its {len(lengths):,} added tokens have {sum(lengths):,} bytes; at most "
            f"{_MOST_ADDED:,} tokens of {_MOST_ADDED_BYTES:,} bytes in all are allowed"
        )


def _check_steps(normalizer: Any, pre_tokenizer: Any, decoder: Any) -> None:
    normalizers = _steps_of(normalizer, "normalizers")
    pre_tokenizers = _steps_of(pre_tokenizer, "pretokenizers")
    decoders = _steps_of(decoder, "decoders")
    if len(normalizers) + len(pre_tokenizers) + len(decoders) > _MOST_STEPS:
        raise ValueError(f"it has more than {_MOST_STEPS} normalizers, pre-tokenizers and decoders")
    for one in pre_tokenizers:
        _check_kind(one["type"], _PRE_TOKENIZERS, "pre-tokenizer")
    for one in decoders:
        _check_kind(one["type"], _DECODERS, "decoder")
    for one in (*normalizers, *pre_tokenizers, *decoders):
        _check_step(one)
    growth = prod(map(_growth_of, normalizers))
    growth *= prod(_GROWTH_BEFORE_TOKENS.get(one["type"], 1) for one in pre_tokenizers)
    _check_growth(growth, "normalizers and pre-tokenizers")
    _check_growth(prod(map(_growth_of_decoder, decoders)), "decoders")


def _check_kind(kind: Any, supported: Collection[str], what: str) -> None:
    # The library guesses the kind of a step with an unknown one from the step's parameters.
    if kind not in supported:
        raise ValueError(f"its {what} {str(kind)[:40]!r} is not supported")


def _check_step(one: Any) -> None:
    """Raise ValueError for a parameter that takes long, or that makes the library panic."""
    kind = one["type"]
    if isinstance(pattern := one.get("pattern"), dict):
        check_pattern(pattern.get("Regex", ""))
        check_parameters(pattern, kind, but=("Regex",))
    check_parameters(one, kind, but=("precompiled_charsmap",))
    if kind == "FixedLength" and one.get("length", 1) == 0:
        raise ValueError("its FixedLength cuts a text into pieces of no length")
    if kind == "Strip" and one.get("stop"):
        raise ValueError("its decoder Strip cuts the end of tokens, which may be shorter")


def _check_growth(growth: float, steps: str) -> None:
    if growth > _MOST_GROWTH:
        raise ValueError(
            f"its {steps} can make a text {growth:.0f} times as long; at most {_MOST_GROWTH} times "
            "is allowed"
        )


def _steps_of(step: Any, key: str) -> list[Any]:
    """Return the steps of a part; ``key`` names those of a Sequence."""
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
        case other:
            _check_kind(other, _GROWTH, "normalizer")
            return _GROWTH[other]


def _growth_of_decoder(one: Any) -> float:
    """Return the largest ratio of a text's bytes after and before a decoder.

    The others insert at most a blank for each token.
    """
    return _growth_of(one) if one["type"] == "Replace" else 1


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
