r"""Which part of a source stays when the whole does not fit.

The rule, in its order:

1. Comments, blank lines and white space that means nothing go (``source_pieces.plain_source``).
2. What the kernel does not reach goes: other functions, macros, declarations, conditional
   directives.
3. What it reaches stays as long as it fits whole, nearest first: callees before what those call.
4. If the kernel alone is too long, the middle of its body goes, for ``...`` on a line. Its
   signature stays whole; of the tokens left two thirds are the body's beginning, one third is its
   end.

A text of more than ``CHARACTERS_PER_TOKEN`` characters for each token left counts as too long
untokenised.

If not even the signature fits, nothing is returned and the launches of the kernel are dropped. What
stays keeps the source's order.
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
"""Stands where the middle of a kernel's body was."""

CHARACTERS_PER_TOKEN = 8
"""More than the tokens of any source have on average (of code: 3 to 4). The bound saves tokenising
megabytes that a program unrolled, of which a thousand tokens stay."""


def is_hopeless(text: str, max_tokens: int) -> bool:
    """Whether a text is so long that it need not be tokenised to know that it does not fit."""
    return len(text) > CHARACTERS_PER_TOKEN * max_tokens


def cut_source(source: str, kernel: str, max_tokens: int, tokenize: Tokenize) -> Ids | None:
    """Return the tokens of what stays of ``source``; None if the kernel's signature does not fit.

    Args:
        source: OpenCL C text that does not fit as it is.
        kernel: name of its kernel.
        max_tokens: most tokens.
        tokenize: from texts to their token ids.
    """
    text = plain_source(source)
    if text != source and not is_hopeless(text, max_tokens):
        (whole,) = tokenize([text])
        if len(whole) <= max_tokens:
            return whole
    pieces = split_source(text)
    first = kernel_piece(pieces, kernel)
    if first is None:  # a name that a macro makes: all of the text is the kernel
        return _without_middle("", text, max_tokens, tokenize)
    needed = [
        index for index in reached(pieces, first) if not is_hopeless(pieces[index].text, max_tokens)
    ]
    ids = dict(zip(needed, tokenize([pieces[index].text for index in needed]), strict=True))
    if first not in ids or len(ids[first]) > max_tokens:
        header, body = _signature_and_body(pieces[first].text, kernel)
        return _without_middle(header, body, max_tokens, tokenize)
    kept, left = [], max_tokens
    for index in needed:  # the kernel leads
        if len(ids[index]) <= left:
            kept.append(index)
            left -= len(ids[index])
    return np.concatenate([ids[index] for index in sorted(kept)])


def _signature_and_body(text: str, kernel: str) -> tuple[str, str]:
    """Split the piece of a kernel after its opening brace; what is before its signature goes."""
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
