"""Prompts of real kernels as a token store: the same tokens for every recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainer.data.dataset import TrainingData, has_source
from trainer.data.token_store import Targets, write_token_store
from trainer.prompt.encode import new_encoder
from trainer.regressor_config import PromptConfig

VALIDATION_SHARE = 0.1
"""Share of the kernels in the validation part."""

_CONTEXT = 2048
"""Tokens of a CodeGen model's context."""


def write_prompts(
    data: TrainingData,
    folder: Path,
    *,
    kernels: int,
    launches: int,
    seed: int,
    least_tokens: int = 0,
    tokenizer: Path | None = None,
) -> str:
    """Write compact text prompts of randomly chosen kernels with equally many launches each.

    Kernels with fewer launches and launches with longer prompts than the context are left out.
    Without ``tokenizer``, a tokenizer is trained on the chosen kernels; it needs a fifth fewer
    tokens for a source than GPT-2's.

    Args:
        data: a dataset whose kernels come with their sources.
        folder: the token store to write.
        kernels: number of kernels.
        launches: number of launches of each kernel.
        seed: seed of the choice.
        least_tokens: leave out kernels whose prefix has fewer tokens.
        tokenizer: a folder with ``tokenizer.json``, or with ``vocab.json`` and ``merges.txt``.

    Returns:
        One line about what was written.

    Raises:
        ValueError: The dataset has too few such kernels.
        BadInput: The folder has no tokenizer.
    """
    random = np.random.default_rng(seed)
    rows = _choose(data, kernels, launches, random)
    config = PromptConfig(form="compact", max_tokens=_CONTEXT, too_long="drop")
    chosen = data.rows.take(rows)
    encoder = new_encoder(chosen, config, tokenizer)
    encoded = encoder.encode(chosen)
    if least_tokens:
        prefixes = encoded.tokens.prefix_lengths[encoded.tokens.group]
        rows = rows[encoded.kept][prefixes >= least_tokens]
        encoded = encoder.encode(data.rows.take(rows))
    rows, tokens = rows[encoded.kept], encoded.tokens
    held_out = random.permutation(tokens.num_groups)[: int(tokens.num_groups * VALIDATION_SHARE)]
    _, family = np.unique(data.family_id[rows], return_inverse=True)
    targets = Targets(
        features=np.zeros((len(rows), 1)),  # no recipe reads features here
        log2_ns=data.log2_ns[rows],
        offset_log2_ns=np.zeros(len(rows)),
        weight=np.ones(len(rows)),
        is_validation=np.isin(tokens.group, held_out),
        family=family,
    )
    write_token_store(folder, tokens=tokens, targets=targets)
    return (
        f"{len(rows):,} launches of {tokens.num_groups:,} kernels; prefixes of "
        f"{np.mean(tokens.prefix_lengths):.0f} tokens (mean), suffixes of "
        f"{np.mean(tokens.suffix_lengths):.0f}; {encoded.num_dropped:,} launches too long, left out"
    )


def _choose(
    data: TrainingData, kernels: int, launches: int, random: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    order = random.permutation(np.flatnonzero(data.single_launch & has_source(data.rows)))
    _, kernel, count = np.unique(
        data.rows.kernel_row[order], return_inverse=True, return_counts=True
    )
    enough = np.flatnonzero(count >= launches)
    if len(enough) < kernels:
        raise ValueError(f"{len(enough)} kernels have {launches} launches; {kernels} are wanted")
    taken = random.permutation(enough)[:kernels]
    return np.concatenate([np.sort(order[kernel == number][:launches]) for number in taken])
