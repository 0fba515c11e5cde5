"""Scales: the position of values on an axis, and the ticks of the axis.

Owns linear and logarithmic scales. Values outside a scale's range are clamped to its edge, so that
an outlier cannot draw over the page; captions say when that happens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.quantities import (
    LARGEST,
    Floats,
    Formatter,
    share_tick,
    short,
    with_unit,
)

_TARGET_TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A range of values on an axis; ``low < high``, and ``low > 0`` if logarithmic."""

    low: float
    high: float
    is_log: bool
    label: str
    """Axis label with its unit."""
    formatter: Formatter = short
    is_count: bool = False
    """Whether ticks are whole numbers only."""

    def __post_init__(self) -> None:
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        if not finite or self.low >= self.high or (self.is_log and self.low <= 0):
            raise ValueError(f"scale {self.label!r}: bad range {self.low} to {self.high}")

    @property
    def column(self) -> str:
        """The name of this axis in CSV data: its label with the unit of the plain numbers."""
        return with_unit(self.label, self.formatter)

    def fraction(self, values: Floats) -> Floats:
        """Return positions from 0 (low) to 1 (high), clamped; values must not be NaN."""
        inside = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        if self.is_log:
            return np.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)

    def value_at(self, fractions: Floats) -> Floats:
        """Return the values at positions from 0 (low) to 1 (high), the inverse of ``fraction``."""
        places = np.asarray(fractions, dtype=np.float64)
        if self.is_log:
            return self.low * (self.high / self.low) ** places
        return self.low + places * (self.high - self.low)

    def ticks(self, target: int = _TARGET_TICKS) -> list[tuple[float, str]]:
        """Return the tick values and their texts."""
        values = self._log_ticks(target) if self.is_log else self._linear_ticks(target)
        return [(value, self.formatter(value)) for value in values]

    def _log_ticks(self, target: int) -> list[float]:
        first, last = (
            math.ceil(math.log10(self.low) - 1e-9),
            math.floor(math.log10(self.high) + 1e-9),
        )
        decades = [10.0**power for power in range(first, last + 1)]
        if len(decades) > target:
            step = math.ceil(len(decades) / target)
            return decades[::step]
        if len(decades) >= 3:
            return decades
        for steps in (
            (1.0, 3.0),
            (1.0, 2.0, 5.0),
            (1.0, 2.0, 3.0, 5.0, 7.0),
            tuple(float(i) for i in range(1, 10)),
        ):
            fine = [
                10.0**power * step
                for power in range(first - 1, last + 1)
                for step in steps
                if self.low * 0.999 <= 10.0**power * step <= self.high * 1.001
            ]
            if len(fine) >= 3:
                return fine
        return self._linear_ticks(target)

    def _linear_ticks(self, target: int) -> list[float]:
        raw = (self.high - self.low) / max(1, target)
        magnitude = 10.0 ** math.floor(math.log10(raw))
        steps = (1, 2, 5, 10) if self.is_count else (1, 2, 2.5, 5, 10)
        step = next(m * magnitude for m in steps if m * magnitude >= raw * 0.999)
        step = max(1.0, step) if self.is_count else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def log_scale(
    values: Floats,
    label: str,
    formatter: Formatter,
    *,
    pad: float = 0.03,
    include: float | None = None,
) -> Scale:
    """Return a padded logarithmic scale over the positive finite values and ``include``."""
    usable = values[(values > 1 / LARGEST) & (values < LARGEST)]
    if include is not None:
        usable = np.append(usable, include)
    low, high = (float(usable.min()), float(usable.max())) if usable.size else (1.0, 10.0)
    if high / low < 1.5:
        low, high = low / 1.5, high * 1.5
    span = (high / low) ** pad
    return Scale(low=low / span, high=high * span, is_log=True, label=label, formatter=formatter)


def linear_scale(
    low: float,
    high: float,
    label: str,
    formatter: Formatter = short,
    *,
    pad: float = 0.0,
    is_count: bool = False,
) -> Scale:
    """Return a linear scale; an empty range is widened to a length of 1."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0.0, 1.0
    low, high = max(low, -LARGEST), min(high, LARGEST)
    if high <= low:
        high = low + 1.0
    span = (high - low) * pad
    return Scale(
        low=low - span,
        high=high + span,
        is_log=False,
        label=label,
        formatter=formatter,
        is_count=is_count,
    )


def share_scale(label: str) -> Scale:
    """Return a linear scale from 0 to 100 %."""
    return linear_scale(0.0, 1.0, label, share_tick)
