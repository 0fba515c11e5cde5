r"""Truncation of a source that is too long for the context.

The steps, in their order:

1. Remove comments, blank lines and redundant white space (``source_pieces.plain_source``).
2. Remove the functions, macros, declarations and conditional directives that the kernel does not
   use, directly or indirectly.
3. If the kernel itself fits, add the pieces it uses that still fit whole, nearest first: its
   callees before the callees' callees.
4. If the kernel alone is too long, keep its signature and replace the middle of its body by a line
   ``...``. Two thirds of the body's tokens are its beginning and one third is its end.

The kept pieces stay in the order of the source. If not even the signature fits, the result is None
and the launches of the kernel are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trainer.data.tokens import Ids
from trainer.prompt.source_pieces import (
    kernel_piece,
    plain_source,
    reached,
    signature_start,
    split_source,
)

Tokenize = Callable[[Sequence[str]], list[Ids]]

GAP = "\n...\n"
"""Text that replaces the middle of a kernel's body."""

CHARACTERS_PER_TOKEN = 8
"""A text with more characters than this for each available token is too long and is not tokenised.
Tokens of code have 3 to 4 characters on average. Generated sources can have megabytes."""


def is_hopeless(text: str, max_tokens: int) -> bool:
    """Return whether a text counts as too long by its number of characters alone."""
    return len(text) > CHARACTERS_PER_TOKEN * max_tokens


def cut_source(source: str, kernel: str, max_tokens: int, tokenize: Tokenize) -> Ids | None:
    """Return the tokens of the truncated source; None if the kernel's signature does not fit.

    Args:
        source: OpenCL C text that has too many tokens.
        kernel: name of its kernel.
        max_tokens: maximum number of tokens of the result.
        tokenize: maps texts to their token ids.
    """
    text = plain_source(source)
    if text != source and not is_hopeless(text, max_tokens):
        (whole,) = tokenize([text])
        if len(whole) <= max_tokens:
            return whole
    pieces = split_source(text)
    first = kernel_piece(pieces, kernel)
    if first is None:  # a macro makes the kernel's name: treat the whole text as the kernel
        return _without_middle("", text, max_tokens, tokenize)
    needed = [
        index for index in reached(pieces, first) if not is_hopeless(pieces[index].text, max_tokens)
    ]
    ids = dict(zip(needed, tokenize([pieces[index].text for index in needed]), strict=True))
    if first not in ids or len(ids[first]) > max_tokens:
        header, body = _signature_and_body(pieces[first].text, kernel)
        return _without_middle(header, body, max_tokens, tokenize)
    kept, left = [], max_tokens
    for index in needed:  # the kernel comes first
        if len(ids[index]) <= left:
            kept.append(index)
            left -= len(ids[index])
    return np.concatenate([ids[index] for index in sorted(kept)])


def _signature_and_body(text: str, kernel: str) -> tuple[str, str]:
    """Return the kernel's signature with its opening brace, and the text after it."""
    start = signature_start(text, kernel) or 0
    brace = text.find("{", start) + 1
    return text[start:brace], text[brace:]


def _without_middle(header: str, body: str, max_tokens: int, tokenize: Tokenize) -> Ids | None:
    enough = CHARACTERS_PER_TOKEN * max_tokens
    head, start, end, gap = tokenize([header, body[:enough], body[-enough:], GAP])
    capacity = max_tokens - len(head) - len(gap)
    if capacity < 0:
        return None
    num_last = min(capacity // 3, len(end))
    return np.concatenate([head, start[: capacity - num_last], gap, end[len(end) - num_last :]])
