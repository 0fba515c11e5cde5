"""Checks of the model of a ``tokenizer.json``, before ``tokenizers`` reads it.

Owns the limits on the memory that the tokens of a Unigram model take.
"""

from __future__ import annotations

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


def check_pieces(pieces: list[bytes]) -> None:
    """Raise ValueError if the tokens of a Unigram model would take gigabytes of memory."""
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
