"""Launches as token ids: one prefix a kernel, one suffix a launch.

Owns the form in which the prompt hands launches to packing. A text token is its id; a *numeric token* is a
negative id, -1 - slot, with its number in ``suffix_values``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """n launches of g kernels (a kernel on one device class is one group), tokenised.

    Attributes:
        prefix_ids: the groups' prefixes one after the other; all text tokens.
        prefix_start: where each begins and the last ends, shape (g + 1,).
        suffix_ids: the launches' suffixes; never empty.
        suffix_values: the number of each numeric token, 0 for text; shape of ``suffix_ids``.
        suffix_start: where each begins and the last ends, shape (n + 1,).
        group: the group of each launch, shape (n,).
    """

    prefix_ids: Ids
    prefix_start: Starts
    suffix_ids: Ids
    suffix_values: npt.NDArray[np.float64]
    suffix_start: Starts
    group: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.group)

    @property
    def num_groups(self) -> int:
        """How many prefixes there are."""
        return len(self.prefix_start) - 1

    @property
    def prefix_lengths(self) -> Starts:
        """Tokens of each prefix, shape (g,)."""
        return np.diff(self.prefix_start)

    @property
    def suffix_lengths(self) -> Starts:
        """Tokens of each suffix, shape (n,)."""
        return np.diff(self.suffix_start)
