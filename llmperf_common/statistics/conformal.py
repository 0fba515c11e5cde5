"""Split-conformal intervals: the errors of predictions on rows that no fit used, turned into a range.

Owns the quantile rule and its record (``conformal.json``). Does not own which rows calibrate: those must be
untouched by fitting and choosing (``trainer/evaluation/calibration.py`` takes the calibration part).

The score of a row is |log2(measured / predicted)|, so an interval is a factor: time / f ... time * f. A model
that says how far off it expects to be (a spread a row) has its scores divided by that, and the interval's
half width is the quantile times the spread (locally weighted conformal prediction, Lei et al. 2018, arXiv
1604.04173): launches that it is sure of get narrow intervals, and the promise stays the same, for the score is
still a function of one row.

Configs of one kernel are alike, so rows are not exchangeable, families are: with ``groups`` each family has
weight 1/(K+1), shared by its rows, and the unseen family has the last 1/(K+1) at infinity (hierarchical
conformal prediction, Lee, Barber and Willett 2023, arXiv 2306.06342). A family of many rows weighs no more
than one of few. The promise: a row drawn from a new family lies within with a probability of at least
``level``, which is the mean over families of the share of their rows within. It is no promise about each
family. It holds for finite K and needs K >= level / (1 - level) families (9 for 90 %). Below that the largest
score is taken and ``guarantee`` says "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.str_]

DEFAULT_LEVEL = 0.9
_SCHEMAS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The half width of one interval and what stands behind it.

    Attributes:
        half_width_log2: time / 2**h to time * 2**h; with a spread a row, h is this times the spread.
        num_rows: calibration rows.
        num_groups: families among them (equal to the rows where none were given).
        guarantee: "groups" (for a new family), "rows" (for a row like those seen) or "none" (too few).
            Approximate where out-of-fold errors helped (``Conformal.source``).
    """

    half_width_log2: float
    num_rows: int
    num_groups: int
    guarantee: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformal:
    """Intervals of one model at one level: a pooled band and one for each bin that was large enough."""

    level: float
    pooled: Band
    bins: Mapping[str, Band] = field(default_factory=dict)
    source: str = "calibration"
    """Which rows calibrated: "calibration", or "calibration+cross" where its families were too few."""
    by_spread: bool = False
    """Whether the half widths are multiples of the spread that the model gives each row."""

    def half_widths(self, bins: npt.ArrayLike) -> Floats:
        """Return the half width in log2 for each label of ``bins`` (shape (n,)); pooled where unknown."""
        return np.array(
            [self.bins.get(str(label), self.pooled).half_width_log2 for label in np.asarray(bins)],
            dtype=np.float64,
        )

    def interval_ns(
        self, predicted_log2_ns: Floats, bins: npt.ArrayLike, spread: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Return the low and high ends in ns, both shape (n,).

        Args:
            predicted_log2_ns: what the model says, shape (n,).
            bins: label of each row, shape (n,).
            spread: how far off the model expects to be, shape (n,); not looked at unless ``by_spread``.

        Raises:
            ValueError: ``by_spread`` without a spread: another model's intervals.
        """
        half = self.half_widths(bins)
        if self.by_spread:
            if spread is None:
                raise ValueError("conformal: calibrated by spread, and the model gives none")
            half = half * spread
        return np.exp2(predicted_log2_ns - half), np.exp2(predicted_log2_ns + half)

    def to_json(self) -> dict[str, object]:
        """Return the content of ``conformal.json``."""
        return {
            "schema": 2,
            "level": self.level,
            "source": self.source,
            "by_spread": self.by_spread,
            "pooled": asdict(self.pooled),
            "bins": {name: asdict(band) for name, band in sorted(self.bins.items())},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Conformal:
        """Read what ``to_json`` wrote, or an earlier release (schema 1: no spread).

        Raises:
            ValueError: It is of another schema or lacks a key.
        """
        if content.get("schema") not in _SCHEMAS:
            raise ValueError(f"conformal.json: schema {content.get('schema')!r} is not 1 or 2")
        try:
            bins, pooled = content["bins"], content["pooled"]
            if not isinstance(bins, Mapping) or not isinstance(pooled, Mapping):
                raise ValueError("conformal.json: 'bins' and 'pooled' must be objects")
            return cls(
                level=float(str(content["level"])),
                pooled=Band(**pooled),
                bins={str(name): Band(**band) for name, band in bins.items()},
                source=str(content["source"]),
                by_spread=content["schema"] != 1 and content["by_spread"] is True,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"conformal.json: {error}") from None


def min_groups(level: float) -> int:
    """Return the fewest groups for which the quantile is finite: ceil(level / (1 - level)).

    >>> min_groups(0.9), min_groups(0.5)
    (9, 1)
    """
    # The tiny slack keeps 0.9 / 0.1 = 9.000000000000002 at 9.
    return max(1, int(np.ceil(level / (1 - level) - 1e-9)))


def conformal_quantile(scores: Floats, groups: npt.ArrayLike | None, level: float) -> Band:
    """Return the finite-sample quantile of ``scores`` (shape (n,), at least one).

    Args:
        scores: of the calibration rows: |log2 ratio|, over the spread where there is one.
        groups: family of each row, or None where rows are exchangeable.
        level: wanted coverage, between 0 and 1.

    Raises:
        ValueError: No scores, one that is not finite, or a level outside (0, 1).
    """
    if len(scores) == 0 or not np.all(np.isfinite(scores)):
        raise ValueError(f"conformal: {len(scores)} scores; at least one is needed, all finite")
    if not 0 < level < 1:
        raise ValueError(f"conformal level {level} must lie between 0 and 1")
    labels = np.arange(len(scores)) if groups is None else np.asarray(groups)
    _, index, rows = np.unique(labels, return_inverse=True, return_counts=True)
    num_groups = len(rows)
    weight = 1.0 / ((num_groups + 1) * rows[index])
    order = np.argsort(scores)
    reached = np.cumsum(weight[order])
    position = int(np.searchsorted(reached, level - 1e-12))
    enough = position < len(scores)
    guarantee = ("rows" if groups is None else "groups") if enough else "none"
    half = scores[order][min(position, len(scores) - 1)]
    return Band(
        half_width_log2=float(half),
        num_rows=len(scores),
        num_groups=num_groups,
        guarantee=guarantee,
    )


def calibrate(
    log2_ratio: Floats,
    *,
    level: float = DEFAULT_LEVEL,
    groups: npt.ArrayLike | None = None,
    bins: npt.ArrayLike | None = None,
    source: str = "calibration",
    by_spread: bool = False,
) -> Conformal:
    """Make intervals from the errors of ``n`` calibration rows.

    Args:
        log2_ratio: log2(measured / predicted), shape (n,), over the spread with ``by_spread``.
        level: wanted coverage.
        groups: family of each row; None treats rows as exchangeable.
        bins: label of each row (its regime): each gets its own band (Mondrian) if it has enough groups,
            else it falls back to the pooled one.
        source: kept in the record.
        by_spread: the errors are divided by the spread that the model gave each row.

    Raises:
        ValueError: As ``conformal_quantile``.
    """
    scores = np.abs(np.asarray(log2_ratio, dtype=np.float64))
    pooled = conformal_quantile(scores, groups, level)
    own: dict[str, Band] = {}
    if bins is not None:
        labels = np.asarray(bins).astype(str)
        for label in np.unique(labels):
            inside = labels == label
            inner = None if groups is None else np.asarray(groups)[inside]
            band = conformal_quantile(scores[inside], inner, level)
            # Twice the minimum: at the bare minimum the quantile is the maximum, which is mostly noise.
            if band.num_groups >= 2 * min_groups(level):
                own[str(label)] = band
    return Conformal(level=level, pooled=pooled, bins=own, source=source, by_spread=by_spread)
