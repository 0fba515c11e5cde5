"""Token sequences of different lengths, concatenated into one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.tokens import Ids, Starts
from trainer.interface import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffixes:
    """The suffixes of n launches; the fields are those of ``Tokens``."""

    ids: Ids
    values: Floats
    start: Starts

    def take(self, index: npt.NDArray[np.intp]) -> Suffixes:
        """Return the suffixes at ``index``, in that order."""
        lengths = np.diff(self.start)[index]
        start = starts(lengths)
        # Place of each kept token in the old array: old start of its suffix + offset within it.
        at = np.arange(start[-1]) + np.repeat(self.start[:-1][index] - start[:-1], lengths)
        return Suffixes(ids=self.ids[at], values=self.values[at], start=start)

    def last(self, most: npt.NDArray[np.int64]) -> Suffixes:
        """Cut each suffix to its last ``most`` tokens, shape (n,).

        The end is kept, because the model's hidden state is read at the last token.
        """
        lengths = np.diff(self.start)
        kept = np.minimum(lengths, most)
        if np.array_equal(kept, lengths):
            return self
        start = starts(kept)
        at = np.arange(start[-1]) + np.repeat(self.start[1:] - start[1:], kept)
        return Suffixes(ids=self.ids[at], values=self.values[at], start=start)


def starts(lengths: Sequence[int] | npt.NDArray[np.int64]) -> Starts:
    """Return where each sequence begins in the concatenation, then the total length.

    >>> starts([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def joined(parts: Sequence[Ids]) -> Ids:
    """Return the concatenated token ids."""
    return np.concatenate([*parts, np.empty(0, dtype=np.int32)]).astype(np.int32)


def text_suffixes(ids: Sequence[Ids]) -> Suffixes:
    """Return suffixes of text tokens only."""
    start = starts([len(one) for one in ids])
    return Suffixes(ids=joined(ids), values=np.zeros(start[-1]), start=start)
