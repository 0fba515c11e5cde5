"""Launches as token ids: one prefix for each kernel, one suffix for each launch.

Owns the form in which ``trainer/prompt`` passes launches to ``trainer/packing``. A text token has
an id of at least 0. A *numeric token* stands for one number of a launch. Its id is negative and
says which number it is: -1 - (index in the table of slots, ``trainer/prompt/numeric.py``). The
number's value is in ``suffix_values``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of n launches in g groups; a group is a kernel on one device class.

    Attributes:
        prefix_ids: the groups' prefixes, concatenated; text tokens only.
        prefix_start: first token of each prefix, then the number of tokens, shape (g + 1,).
        suffix_ids: the launches' suffixes, concatenated; no suffix is empty.
        suffix_values: the number of each numeric token, 0 for text; shape of ``suffix_ids``.
        suffix_start: first token of each suffix, then the number of tokens, shape (n + 1,).
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
        """Number of groups, which is the number of prefixes."""
        return len(self.prefix_start) - 1

    @property
    def prefix_lengths(self) -> Starts:
        """Number of tokens of each prefix, shape (g,)."""
        return np.diff(self.prefix_start)

    @property
    def suffix_lengths(self) -> Starts:
        """Number of tokens of each suffix, shape (n,)."""
        return np.diff(self.suffix_start)
