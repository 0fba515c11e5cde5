"""Checks of the model of a ``tokenizer.json``, before ``tokenizers`` reads it.

Owns the kinds of models, the limits on the ids of tokens, and the memory that tokens take.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_KINDS = ("BPE", "Unigram", "WordLevel", "WordPiece")

_MOST_IDS = 2**24
"""Maximum number of ids; the largest known vocabulary (XLM-V) has 901,629 tokens."""
_UNUSED_IDS = 1_000
"""Number of ids that a vocabulary may leave unused, beside one for each token. The embedding has a
row for each id up to the largest, so a small file must not name a large one."""
_LARGEST_SCORE = 1e9
"""Maximum score of a Unigram model's token, of either sign. Scores are logarithms of probabilities,
about -20 to 0. The library adds those of a text, and the sum must be finite."""

_LONGEST_PARAMETER_BYTES = 256
"""Maximum bytes of a text in a model or step. The library uses some of them, such as the prefix of
a word's later tokens, anew for each character of a text."""
_LARGEST_PARAMETER = 256
"""Maximum of a number in a model or step. The largest known is a WordPiece model's most characters
of a word, 100. A text of 100 KB without spaces takes 0.9 s with 100 and 14 s with 1,000."""

_LONGEST_PIECE_BYTES = 1_000
"""Maximum bytes of a Unigram model's token. A token of a million bytes overflows the library's
stack."""
_MOST_UNIGRAM_BYTES = 600 * 2**20
"""Maximum memory in bytes of a Unigram model, computed from the following two constants. 320,000
words of 40 languages (4 MB of text) take 380 MiB."""
_NODE_BYTES = 350
"""Memory in bytes of a node of the library's tree of tokens, which has one for each distinct start
of a token."""
_PIECE_BYTES = 250
"""Memory in bytes of a token beside its nodes."""


def checked_model(model: Any) -> dict[str, Any]:
    """Return a model that names its kind; files of early releases of the library do not.

    Raises:
        ValueError: The model is of an unknown kind, would make the library panic, or would make it
            use gigabytes of memory. Content of another form raises KeyError, TypeError or
            AttributeError.
    """
    kind = model.get("type")
    if kind is None:
        kind = _kind_of(model)
    if kind not in _KINDS:
        raise ValueError(f"its model {str(kind)[:40]!r} is not supported")
    check_parameters(model, f"{kind} model", but=("vocab", "merges", "unk_id", "type"))
    if kind == "Unigram":
        _check_pieces(model["vocab"])
    else:
        _check_ids(model["vocab"])
    if kind == "BPE":
        _check_merges(model)
    return {**model, "type": kind}


def _kind_of(model: Any) -> str:
    """Return the kind that the library guesses from the keys of a model."""
    if isinstance(model["vocab"], list):  # pairs of a token and its score
        return "Unigram"
    if "merges" in model:
        return "BPE"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _check_ids(vocabulary: Any) -> None:
    """Raise ValueError unless tokens have ids of their own from 0 on, of which most are used.

    The library takes an id of 2^32 + 1 for 1. Of two tokens with one id it writes one, so that a
    run's tokenizer would make other tokens than its training had.
    """
    most = min(_MOST_IDS, 2 * len(vocabulary) + _UNUSED_IDS)
    for token, number in vocabulary.items():
        if type(number) is not int or number < 0:
            raise ValueError(f"its token {token[:40]!r} has the id {number!r:.40}")
        if number >= most:
            raise ValueError(
                f"its token {token[:40]!r} has the id {number!s:.40}, which is too large for "
                f"{len(vocabulary):,} tokens; the largest id allowed is {most - 1:,}"
            )
    if len(set(vocabulary.values())) < len(vocabulary):
        raise ValueError("two of its tokens have one id")


def check_parameters(part: Any, what: str, *, but: Collection[str]) -> None:
    """Raise ValueError if a text or a number in a model or step is too large.

    Args:
        part: the model or step.
        what: names it in the message.
        but: keys whose values have limits of their own.
    """
    for key in part.keys() - set(but):
        one = part[key]
        if isinstance(one, str) and len(bytes_of(one)) > _LONGEST_PARAMETER_BYTES:
            raise ValueError(
                f"the text {key[:40]!r} of its {what} has {len(bytes_of(one)):,} bytes; at most "
                f"{_LONGEST_PARAMETER_BYTES} are allowed"
            )
        if isinstance(one, int | float) and not 0 <= one <= _LARGEST_PARAMETER:
            raise ValueError(
                f"{key[:40]!r} of its {what} is {one!r:.40}: only numbers of 0 to "
                f"{_LARGEST_PARAMETER:,} are allowed"
            )


def _check_merges(model: Any) -> None:
    """Raise ValueError if the vocabulary lacks what a merge joins or makes.

    The library cuts as many bytes as the prefix of a word's later tokens has from the right token,
    and panics if that token has fewer, or if the result is longer than all tokens.
    """
    vocabulary, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
    for one in model["merges"]:
        if isinstance(one, str) and one.startswith("#version"):
            continue  # the library leaves out the head of a merges.txt
        left, right = one.split(" ") if isinstance(one, str) else one
        if not right.startswith(prefix) or left + right[len(prefix) :] not in vocabulary:
            raise ValueError(
                f"its merge of {left[:40]!r} and {right[:40]!r} gives no token of the vocabulary"
            )


def _check_pieces(vocabulary: Any) -> None:
    for piece, score in vocabulary:
        if type(score) not in (int, float) or abs(score) > _LARGEST_SCORE:
            raise ValueError(f"its token {piece[:40]!r} has the score {score!r:.40}")
    pieces = [bytes_of(piece) for piece, _ in vocabulary]
    if max(map(len, pieces), default=0) > _LONGEST_PIECE_BYTES:
        raise ValueError(
            f"a token of its Unigram model has more than {_LONGEST_PIECE_BYTES:,} bytes"
        )
    num_bytes = _PIECE_BYTES * len(pieces)
    if num_bytes <= _MOST_UNIGRAM_BYTES:
        num_bytes += _NODE_BYTES * _num_starts(pieces)
    if num_bytes > _MOST_UNIGRAM_BYTES:
        raise ValueError(
            f"its Unigram model of {len(pieces):,} tokens would take {num_bytes >> 20} MiB of "
            f"memory; at most {_MOST_UNIGRAM_BYTES >> 20} are allowed"
        )


def _num_starts(pieces: list[bytes]) -> int:
    """Return the number of distinct, not empty starts of some texts.

    >>> _num_starts([b"ab", b"ac", b"a"])
    3
    """
    found, before = 0, b""
    for piece in sorted(pieces):
        shared = next(
            (place for place, (a, b) in enumerate(zip(piece, before, strict=False)) if a != b),
            min(len(piece), len(before)),
        )
        found += len(piece) - shared
        before = piece
    return found


def bytes_of(text: str) -> bytes:
    """Return a text in UTF-8; JSON allows half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")
