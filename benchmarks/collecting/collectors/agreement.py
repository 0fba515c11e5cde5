"""Whether two collections measure the same times for the same launch configs.

LLMPerf's median (``ours``) is the reference. An error is the distance of the other collector's
median from LLMPerf's median, in per cent of the latter. Launches that LLMPerf timed in batches are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TEN_US_NS = 10_000.0
_DECADES = ((0.0, 1e4), (1e4, 1e5), (1e5, 1e6), (1e6, 1e7), (1e7, 1e12))
_DECADE_NAMES = ("below 10 us", "10-100 us", "100 us-1 ms", "1-10 ms", "above 10 ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One row of ``agreement.csv``.

    ``signed_percent``: median of (other / ours - 1); above 0 the other collector's times are
    longer.
    """

    pair: str
    subset: str
    num_configs: int
    mape_percent: float
    median_ape_percent: float
    p90_ape_percent: float
    signed_percent: float


def agreements(
    pair: str,
    ours_ns: Mapping[str, float],
    other_ns: Mapping[str, float],
    *,
    refilled: frozenset[str] = frozenset(),
) -> list[Agreement]:
    """Return how far ``other_ns`` is from ``ours_ns`` over the common configs, by class.

    Args:
        pair: name of the two collections.
        ours_ns: LLMPerf's medians by ``sample_id``; they decide the class.
        other_ns: the other collector's medians by ``sample_id``.
        refilled: configs of kernels that read what they write. If there are any, the configs from
            10 us on without them get a row of their own.
    """
    ids = sorted(ours_ns.keys() & other_ns.keys())
    ours = np.array([ours_ns[one] for one in ids], dtype=np.float64)
    other = np.array([other_ns[one] for one in ids], dtype=np.float64)
    kept = np.array([one not in refilled for one in ids], dtype=bool)
    rows = []
    for subset, chooses in _subsets(kept):
        mask = chooses(ours)
        if mask.any():
            rows.append(_row(pair, subset, ours[mask], other[mask]))
    return rows


_Chooser = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.bool_]]


def _subsets(kept: npt.NDArray[np.bool_]) -> Iterator[tuple[str, _Chooser]]:
    yield "all", lambda ours: ours > 0
    yield "from 10 us", lambda ours: ours >= TEN_US_NS
    if not kept.all():
        yield "from 10 us, not refilled", lambda ours: (ours >= TEN_US_NS) & kept
    for name, (low, high) in zip(_DECADE_NAMES, _DECADES, strict=True):
        yield name, lambda ours, low=low, high=high: (ours >= low) & (ours < high)  # type: ignore[misc]


def _row(
    pair: str, subset: str, ours: npt.NDArray[np.float64], other: npt.NDArray[np.float64]
) -> Agreement:
    errors = 100.0 * np.abs(other - ours) / ours
    return Agreement(
        pair=pair,
        subset=subset,
        num_configs=len(ours),
        mape_percent=float(errors.mean()),
        median_ape_percent=float(np.median(errors)),
        p90_ape_percent=float(np.percentile(errors, 90)),
        signed_percent=float(100.0 * (2.0 ** np.median(np.log2(other / ours)) - 1.0)),
    )
