"""Sample ids as numbers, to find repeated ids among millions of rows with little memory.

Owns the exact 10-byte form of the ids in a column, and the search among them: which ids occur
twice, and which row of each id is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.ids import ID_HEX_DIGITS

_RECORD = np.dtype([("high", ">u8"), ("low", ">u2")])
assert _RECORD.itemsize == ID_HEX_DIGITS // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IdKeys:
    """A column of ids: ``high`` holds the first 16 hex digits of each id, ``low`` the last 4."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.high)

    def text(self, index: int) -> str:
        """Return one id as its 20 hex digits."""
        return f"{int(self.high[index]):016x}{int(self.low[index]):04x}"


def id_keys(column: pa.ChunkedArray) -> IdKeys:
    """Return a column of sample ids as numbers.

    Raises:
        ValueError: A value is not 20 hex digits.
    """
    texts = column.to_pylist()
    if any(text is None or len(text) != ID_HEX_DIGITS for text in texts):
        raise ValueError(f"not every id has {ID_HEX_DIGITS} hex digits")
    raw = bytes.fromhex("".join(texts))
    if len(raw) != len(texts) * _RECORD.itemsize:  # bytes.fromhex has skipped white space
        raise ValueError("an id holds white space")
    records = np.frombuffer(raw, _RECORD)
    return IdKeys(high=records["high"].astype(np.uint64), low=records["low"].astype(np.uint16))


def join_keys(parts: Sequence[IdKeys]) -> IdKeys:
    """Return the rows of ``parts``, one after the other."""
    return IdKeys(
        high=np.concatenate([np.empty(0, np.uint64), *(part.high for part in parts)]),
        low=np.concatenate([np.empty(0, np.uint16), *(part.low for part in parts)]),
    )


def first_of_each(keys: IdKeys, rank: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return which rows are kept: for each id the row of lowest ``rank``, the first of equal ranks.

    >>> keys = id_keys(pa.chunked_array([["0" * 20, "1" * 20, "0" * 20, "1" * 20]]))
    >>> first_of_each(keys, np.array([1, 0, 0, 0])).tolist()
    [False, True, True, False]
    """
    order = np.lexsort((rank, keys.low, keys.high))  # stable: equal rows stay in their order
    kept = np.zeros(len(keys), np.bool_)
    kept[order[~_repeats(keys, order)]] = True
    return kept


def repeated_ids(keys: IdKeys) -> list[str]:
    """Return the ids that occur more than once, sorted."""
    order = np.lexsort((keys.low, keys.high))
    return sorted({keys.text(int(index)) for index in order[_repeats(keys, order)]})


def _repeats(keys: IdKeys, order: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Whether each row, taken in ``order``, has the id of the row before it."""
    high, low = keys.high[order], keys.low[order]
    repeats = np.zeros(len(order), np.bool_)
    repeats[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return repeats
