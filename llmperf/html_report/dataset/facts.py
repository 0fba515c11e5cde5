"""The facts of a dataset that several sections of its report share, computed once.

The facts are arrays, look-ups, the order of every category, the common time axis and display names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.quantities import Bools, Ints, decade_of, nanoseconds_tick
from llmperf.html_report.charts.scales import Scale, log_scale
from llmperf.html_report.columns import Categorical, SampleColumns, sample_columns
from llmperf.html_report.kernel.index import KernelsIndex, index_kernels
from llmperf.html_report.views import DatasetView
from llmperf_common.failures import OK_STATUS, FailureCode
from llmperf_common.records import Regime, Strategy

REGIME_ORDER = tuple(regime.value for regime in Regime)
STRATEGY_ORDER = tuple(strategy.value for strategy in Strategy)
STATUS_ORDER = (OK_STATUS, *(code.value for code in FailureCode))
_MAX_FAILURE_PARTS = 6
_WORDS = {
    Regime.IDLE_SM.value: "idle-SM",
    Regime.UNDER_UTILISED.value: "under-utilised",
    Regime.FULLY_UTILISED.value: "fully utilised",
    Strategy.MEMORY_ANALYSIS.value: "memory analysis",
    "": "(none)",
}


def words_of(value: str) -> str:
    """Return the displayed form of a stored value: ``idle-SM`` for ``idle_sm``."""
    return _WORDS.get(value, value.replace("_", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPart:
    """One colour of a chart of statuses: ok, one failure code, or all rarer codes together."""

    label: str
    values: tuple[str, ...]
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """The input of the sections of a dataset's report."""

    view: DatasetView
    samples: SampleColumns
    kernels: KernelsIndex
    decade: Ints
    """Index of each row's time decade; meaningful only where ``samples.timed`` is true."""
    time_scale: Scale

    @property
    def regimes(self) -> list[str]:
        """The regimes in the data, idle-SM first."""
        return ordered(self.samples.regime, REGIME_ORDER)

    @property
    def strategies(self) -> list[str]:
        """The input strategies in the data."""
        return ordered(self.samples.strategy, STRATEGY_ORDER)

    @property
    def statuses(self) -> list[str]:
        """The statuses in the data, ok first."""
        return ordered(self.samples.status, STATUS_ORDER)

    def status_parts(self) -> list[StatusPart]:
        """Return a part for ok, one for each of the commonest failures, and one for the others."""
        counts = self.samples.status.counts()
        failures = [name for name in self.statuses if name != OK_STATUS]
        common = set(sorted(failures, key=lambda name: (-counts[name], name))[:_MAX_FAILURE_PARTS])
        rest = tuple(name for name in failures if name not in common)
        parts = [StatusPart(label="ok", values=(OK_STATUS,), colour=0)]
        parts += [
            StatusPart(label=words_of(name), values=(name,), colour=colour)
            for colour, name in enumerate((name for name in failures if name in common), start=1)
        ]
        if rest:
            parts.append(StatusPart(label="other failures", values=rest, colour=len(parts)))
        return parts

    def has_status(self, part: StatusPart) -> Bools:
        """Return which rows belong to a part."""
        chosen = np.zeros(self.samples.num_rows, dtype=bool)
        for value in part.values:
            chosen |= self.samples.status.is_value(value)
        return chosen

    def commonest_class(self) -> str:
        """Return the device class with the most timed rows; empty if no row is timed."""
        counts = self.samples.device_class.counts(self.samples.timed)
        return min(counts, key=lambda name: (-counts[name], name), default="")

    def num_classes(self) -> int:
        """Return the number of device classes with timed rows."""
        return len(self.samples.device_class.counts(self.samples.timed))

    def decades_met(self) -> list[int]:
        """Return the time decades with timed rows."""
        return [int(d) for d in np.unique(self.decade[self.samples.timed])]


def ordered(column: Categorical, known: tuple[str, ...]) -> list[str]:
    """Return the column's values: known values in their order, then other values by name."""
    met = column.counts()
    first = [name for name in known if name in met]
    return first + sorted(name for name in met if name not in known)


def rows_of_kernel(column: Categorical, rows: Bools) -> Ints:
    """Return the number of chosen rows of each kernel, in the order of ``column.names``."""
    return np.bincount(column.codes[rows], minlength=len(column.names)).astype(np.int64)


def dataset_facts(view: DatasetView) -> DatasetFacts:
    """Return the facts that all sections share."""
    samples = sample_columns(view.samples)
    times = samples.median_ns[samples.timed]
    decade = np.zeros(samples.num_rows, dtype=np.int64)
    decade[samples.timed] = decade_of(times)
    return DatasetFacts(
        view=view,
        samples=samples,
        kernels=index_kernels(view.kernels),
        decade=decade,
        time_scale=log_scale(times, "Warm median time", nanoseconds_tick),
    )
