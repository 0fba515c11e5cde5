"""Batches for prediction: any launches, each once, in as few sequences as possible.

Launches are not shuffled, and as many launches as fit share a copy of their kernel's prefix. Empty
packs are added so that all forward passes of one length have the same number of packs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainer.data.tokens import Tokens
from trainer.packing.batch import PackBatch, QueryBatch
from trainer.packing.layout import pack_batch
from trainer.packing.packs import Indices, Packs
from trainer.packing.plan import packs_for
from trainer.packing.queries import query_batch, query_packs_for
from trainer.packing.ranks import packs_per_pass, rank_passes
from trainer.regressor_config import PackingConfig

_LAUNCHES_MULTIPLE = 64
"""A pack's maximum number of launches is rounded up to a multiple of this, to save compilations."""


def pack_batches_for(tokens: Tokens, rows: Indices, config: PackingConfig) -> Iterator[PackBatch]:
    """Yield batches that have each of the launches ``rows`` once (``reads = "packed"``).

    Args:
        tokens: all launches.
        rows: the rows of ``tokens`` to predict, each once; may be empty.
        config: ``lengths`` and ``tokens_per_pass``.

    Raises:
        BadInput: A launch does not fit into the longest pack.
    """
    packs = packs_for(tokens, rows, config)
    for length in np.unique(packs.length).tolist():
        same = packs.take(np.flatnonzero(packs.length == length))
        places = -(-int(np.max(same.num_launches)) // _LAUNCHES_MULTIPLE) * _LAUNCHES_MULTIPLE
        for one in _passes(same, config.tokens_per_pass // length):
            yield pack_batch(one, tokens, num_launches=places)


def query_batches_for(tokens: Tokens, rows: Indices, config: PackingConfig) -> Iterator[QueryBatch]:
    """Yield batches that have each of the launches ``rows`` once (``reads = "query"``).

    Args:
        tokens: all launches.
        rows: the rows of ``tokens`` to predict, each once; may be empty.
        config: ``tokens_per_pass``.

    Raises:
        BadInput: A launch has more tokens than a forward pass.
    """
    packs, shape = query_packs_for(tokens, rows, config)
    for length in np.unique(packs.length).tolist():
        same = packs.take(np.flatnonzero(packs.length == length))
        for one in _passes(same, shape.kernels_per_pass(length, config)):
            yield query_batch(one, tokens, shape)


def _passes(packs: Packs, most: int) -> tuple[Packs, ...]:
    width = packs_per_pass(len(packs), most, world_size=1)
    return rank_passes(packs, rank=0, world_size=1, per_pass={int(packs.length[0]): width})
