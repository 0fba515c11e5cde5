"""Notes on the prompts of a fit: their lengths, and how many were cut or left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.prompt.prompt_statistics import PromptStatistics


def said_of_prompts(statistics: PromptStatistics) -> str:
    """Return the line of progress about the prompts of a fit."""
    text = (
        f"prompts: {statistics.num_launches:,} launches of {statistics.num_groups:,} kernels, "
        f"{statistics.median_tokens:.0f} tokens (median), {statistics.max_tokens} at most"
    )
    if statistics.num_truncated_groups:
        text += f"; {statistics.num_truncated_groups:,} kernels cut"
    if statistics.num_dropped_launches:
        text += f"; {statistics.num_dropped_launches:,} launches too long and left out"
    return text


def prompt_notes(prepared: Mapping[str, Any]) -> list[str]:
    """Return notes on the kernels and launches whose prompts were longer than the context.

    Args:
        prepared: content of ``prepared/regressor.json``; earlier releases wrote no counts.
    """
    said = prepared.get("prompts", {})
    cut, dropped = said.get("num_truncated_groups", 0), said.get("num_dropped_launches", 0)
    notes = []
    if cut:
        notes.append(
            f"prompts: the sources of {cut:,} of {said['num_groups']:,} train and validation "
            "kernels are longer than prompt.max_tokens and were cut"
        )
    if dropped:
        notes.append(
            f"prompts: {dropped:,} launches of {said['num_launches'] + dropped:,} are longer than "
            "prompt.max_tokens and were left out of the train and validation parts"
        )
    return notes
