"""Split-conformal intervals, made from prediction errors on rows that no fit has used.

Owns the quantile rule and its record (``conformal.json``). ``trainer/evaluation/calibration.py``
chooses the calibration rows, which neither fitting nor model selection may have used.

The score of a row is |log2(measured / predicted)|. A quantile of the scores gives a factor f, and
the interval of a prediction runs from time / f to time * f.

The guarantee: the interval of a row of a new family contains the measured time with a probability
of at least ``level``, averaged over families. Single families may be covered less. The guarantee is
not asymptotic: it holds for any number K of calibration families from level / (1 - level) on (9 for
90 %). With fewer families the largest score is taken, and ``guarantee`` is "none".

Rows of one kernel resemble each other, so families are exchangeable but rows are not. With
``groups`` each of the K families has weight 1/(K+1), which its rows share, so a large family weighs
no more than a small one. The remaining weight of 1/(K+1) stands for the new family, whose score is
taken as infinite (hierarchical conformal prediction, Lee, Barber and Willett 2023, arXiv
2306.06342).

If a model gives each row a spread (the error that it expects), scores are divided by the spread,
and the half width of an interval is the quantile times the spread (locally weighted conformal
prediction, Lei et al. 2018, arXiv 1604.04173). So rows with a small spread get narrow intervals.
The guarantee still holds, because a score still depends on one row only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from llmperf_common.files.json_numbers import number, share, whole

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.str_]

DEFAULT_LEVEL = 0.9
_SCHEMAS = (1, 2)
_MOST_HALF_WIDTH = 1e9
"""Maximum half width in a record, in log2 or in multiples of a spread. Errors are below 64, and the
smallest spread that a model gives is about 1e-6."""
_MOST_ROWS = 2**53
_GUARANTEES = ("groups", "rows", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The half width of an interval, and the calibration data behind it.

    Attributes:
        half_width_log2: the interval runs from time / 2**h to time * 2**h, where h is this half
            width or, with spreads, this half width times the spread.
        num_rows: number of calibration rows.
        num_groups: number of families of these rows (the number of rows where no families were
            given).
        guarantee: "groups" (holds for a new family), "rows" (for a row like the calibration rows)
            or "none" (too few families). The guarantee is approximate where out-of-fold errors were
            added (``Conformal.source``).
    """

    half_width_log2: float
    num_rows: int
    num_groups: int
    guarantee: str

    @classmethod
    def from_json(cls, content: object, what: str) -> Band:
        """Read a band of a record; ``what`` names it in messages.

        Raises:
            ValueError: A key is missing, unknown or out of its range.
        """
        if not isinstance(content, Mapping):
            raise ValueError(f"{what} is not an object")
        try:
            band = cls(**content)
        except TypeError:
            raise ValueError(f"{what} has other keys than the band of an interval") from None
        if band.guarantee not in _GUARANTEES:
            raise ValueError(f"{what}: guarantee is not one of {', '.join(_GUARANTEES)}")
        return cls(
            half_width_log2=number(
                band.half_width_log2, f"{what}: half_width_log2", least=0, most=_MOST_HALF_WIDTH
            ),
            num_rows=whole(band.num_rows, f"{what}: num_rows", least=1, most=_MOST_ROWS),
            num_groups=whole(band.num_groups, f"{what}: num_groups", least=1, most=_MOST_ROWS),
            guarantee=band.guarantee,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformal:
    """Intervals of one model at one level: a pooled band, and a band for each large enough bin."""

    level: float
    pooled: Band
    bins: Mapping[str, Band] = field(default_factory=dict)
    source: str = "calibration"
    """The rows used: "calibration", or "calibration+cross" (with out-of-fold errors of train rows)
    where the part calibration was too small."""
    by_spread: bool = False
    """Whether half widths are multiples of the spread that the model predicts for each row."""

    def half_widths(self, bins: npt.ArrayLike) -> Floats:
        """Return the log2 half width of each label, shape (n,); the pooled one if it is unknown."""
        return np.array(
            [self.bins.get(str(label), self.pooled).half_width_log2 for label in np.asarray(bins)],
            dtype=np.float64,
        )

    def interval_ns(
        self, predicted_log2_ns: Floats, bins: npt.ArrayLike, spread: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Return the low and high ends in ns, both shape (n,).

        Args:
            predicted_log2_ns: log2 of the predicted times, shape (n,).
            bins: label of each row, shape (n,).
            spread: the model's expected error of each row, shape (n,); ignored unless
                ``by_spread``.

        Raises:
            ValueError: ``by_spread`` is set but no spread was given: the intervals were made for
                another model.
        """
        half = self.half_widths(bins)
        if self.by_spread:
            if spread is None:
                raise ValueError("conformal: calibrated by spread, but the model gives no spread")
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
        """Read the output of ``to_json``, even of earlier releases (schema 1 has no spread).

        Raises:
            ValueError: The schema is unknown, or a key is missing or out of its range.
        """
        if content.get("schema") not in _SCHEMAS:
            raise ValueError(
                f"conformal.json has schema {content.get('schema')!r}, but this LLMPerf reads "
                "schemas 1 and 2: train the run again with this release"
            )
        try:
            bins, pooled = content["bins"], content["pooled"]
            by_spread = content["schema"] != 1 and content["by_spread"]
            if not isinstance(bins, Mapping) or not isinstance(by_spread, bool):
                raise ValueError("'bins' is not an object, or 'by_spread' not a truth value")
            return cls(
                level=share(content["level"], "level"),
                pooled=Band.from_json(pooled, "pooled"),
                bins={
                    str(name): Band.from_json(one, f"bins: {name}") for name, one in bins.items()
                },
                source=str(content["source"]),
                by_spread=by_spread,
            )
        except KeyError as error:
            raise ValueError(f"conformal.json: {error} is missing") from None
        except ValueError as error:
            raise ValueError(f"conformal.json: {error}") from None


def min_groups(level: float) -> int:
    """Return the fewest groups for which the quantile is finite: ceil(level / (1 - level)).

    >>> min_groups(0.9), min_groups(0.5)
    (9, 1)
    """
    # The slack absorbs rounding: 0.9 / 0.1 = 9.000000000000002 must count as 9.
    return max(1, int(np.ceil(level / (1 - level) - 1e-9)))


def conformal_quantile(scores: Floats, groups: npt.ArrayLike | None, level: float) -> Band:
    """Return the finite-sample quantile of ``scores`` (shape (n,), at least one).

    Args:
        scores: |log2 ratio| of the calibration rows, divided by the spread if the model gives one.
        groups: family of each row, or None where rows are exchangeable.
        level: wanted coverage, between 0 and 1.

    Raises:
        ValueError: There are no scores, a score is not finite, or the level lies outside (0, 1).
    """
    if len(scores) == 0 or not np.all(np.isfinite(scores)):
        raise ValueError(
            f"conformal: {len(scores)} scores, but at least one is needed, and all must be finite"
        )
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
        log2_ratio: log2(measured / predicted), shape (n,); if ``by_spread`` is set, the caller has
            divided it by the spread.
        level: wanted coverage.
        groups: family of each row; None treats rows as exchangeable.
        bins: label of each row (its regime). A label with enough families gets a band of its own
            (Mondrian), any other label uses the pooled band.
        source: the rows used, which the record stores.
        by_spread: whether the errors are divided by the model's spread of each row.

    Raises:
        ValueError: Same as ``conformal_quantile``.
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
            # Require twice the minimum number of families: with the minimum the quantile is the
            # largest score, which is mostly noise.
            if band.num_groups >= 2 * min_groups(level):
                own[str(label)] = band
    return Conformal(level=level, pooled=pooled, bins=own, source=source, by_spread=by_spread)
