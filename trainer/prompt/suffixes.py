"""Token sequences of different lengths, one after the other."""

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
        # The place of each token kept: its place within its suffix, moved to where that began.
        at = np.arange(start[-1]) + np.repeat(self.start[:-1][index] - start[:-1], lengths)
        return Suffixes(ids=self.ids[at], values=self.values[at], start=start)

    def last(self, most: npt.NDArray[np.int64]) -> Suffixes:
        """Cut each suffix at its beginning to at most ``most`` tokens, shape (n,).

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
    """Return where each of some sequences begins and the last one ends.

    >>> starts([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def joined(parts: Sequence[Ids]) -> Ids:
    """Return token ids one after the other."""
    return np.concatenate([*parts, np.empty(0, dtype=np.int32)]).astype(np.int32)


def text_suffixes(ids: Sequence[Ids]) -> Suffixes:
    """Return suffixes without a numeric token."""
    start = starts([len(one) for one in ids])
    return Suffixes(ids=joined(ids), values=np.zeros(start[-1]), start=start)
