"""Limits on a foreign ``config.json``: ``transformers`` builds whatever the config asks for.

Owns the limits on numbers of blocks and experts, checked before the library reads the config, and
on the number of tensors, checked while the library builds the model. ``weights.py`` owns the limit
on the size of these tensors.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

_LIMITS = (
    (re.compile(r"(layer|block|depth|repeat|stage)s?(_per_[a-z]+)?$|^block_sizes$"), 1_000),
    (re.compile(r"experts?(_num)?$"), 2**14),
    (re.compile(r"^(mamba_|ssm_)?chunk_size$|attn_chunk_length$|^attention_window$"), 1_024),
)
"""Names of numbers that say how often a part of the model is repeated, or to how many tokens a text
is padded, and the largest number that is allowed. Published decoders have at most 130 blocks, at
most 16,384 experts (Doge), and chunks of at most 512 tokens. The library makes lists of the first
two lengths before it builds a module, so a number of 10^9 takes GBs. A model that pads a text to a
chunk of 8,000 tokens takes 3.6 GB for 11 tokens."""

_SIZES = re.compile(r"(token|size|window|dim|head|channel|width|length|feature)s?_per_[a-z]+$")
"""Names of sizes within one repeated part, such as ``tokens_per_block``. A single such number
repeats nothing, so it is not limited. A list of such sizes, one for each part, is limited."""

_MOST_TENSORS = 2**17
"""Maximum number of weight tensors in a model. A decoder of 61 blocks with 384 experts, each of
three modules of its own, has 71,000. A tensor takes up to 130 us and 6 KB even without values: this
many take 17 s and 0.8 GB, but 10^6 blocks would take minutes and gigabytes."""


def check_counts(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a config, at any depth, repeats a part of the model too often."""
    for name, value in config.items():
        most = next((most for pattern, most in _LIMITS if pattern.search(str(name))), None)
        _check(str(name), value, most)


def _check(name: str, value: Any, most: int | None) -> None:
    if isinstance(value, Mapping):
        check_counts(value)
    elif isinstance(value, list | tuple):
        if most is not None and len(value) > most:
            raise ValueError(f"{name} has {len(value):,} entries: at most {most:,} are allowed")
        for one in value:
            _check(name, one, most)
    elif most is None or _SIZES.search(name):
        return
    elif isinstance(value, int | float) and not -most <= value <= most:
        raise ValueError(f"{name} is {str(value)[:40]}: at most {most:,} are allowed")


@contextmanager
def limited_tensors() -> Iterator[None]:
    """Raise ValueError in the block as soon as modules have more than ``_MOST_TENSORS`` weights.

    Modules that other threads build meanwhile do not count.
    """
    num_tensors = 0
    thread = threading.get_ident()

    def count(_module: nn.Module, _name: str, _weight: nn.Parameter | None) -> None:
        nonlocal num_tensors
        num_tensors += threading.get_ident() == thread
        if num_tensors > _MOST_TENSORS:
            raise ValueError(
                f"its config asks for more than the {_MOST_TENSORS:,} weight tensors that are "
                "allowed"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
