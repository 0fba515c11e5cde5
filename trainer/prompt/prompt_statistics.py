"""Lengths of prompts, for a model's card and for the choice of a context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.tokens import Starts, Tokens
from trainer.prompt.encode import Encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStatistics:
    """Lengths of the kept prompts (prefix + suffix) in tokens; 0 if no launch was kept."""

    num_launches: int
    num_groups: int
    median_tokens: float
    p90_tokens: float
    max_tokens: int
    num_truncated_groups: int
    num_dropped_launches: int


def prompt_lengths(tokens: Tokens) -> Starts:
    """Return the number of tokens of each launch's prompt, shape (n,)."""
    return tokens.prefix_lengths[tokens.group] + tokens.suffix_lengths


def context_needed(tokens: Tokens) -> int:
    """Return the tokens of the longest prompt, which the context must hold; 0 without a prompt."""
    return int(prompt_lengths(tokens).max(initial=0))


def prompt_statistics(encoded: Encoded) -> PromptStatistics:
    """Return the lengths of the prompts and how many were cut or dropped."""
    lengths = prompt_lengths(encoded.tokens)
    median, p90 = np.percentile(lengths, [50, 90]) if len(lengths) else (0.0, 0.0)
    return PromptStatistics(
        num_launches=len(encoded.tokens),
        num_groups=encoded.tokens.num_groups,
        median_tokens=float(median),
        p90_tokens=float(p90),
        max_tokens=context_needed(encoded.tokens),
        num_truncated_groups=encoded.num_truncated,
        num_dropped_launches=encoded.num_dropped,
    )
