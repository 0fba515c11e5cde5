"""Drift of the devices during a run: the repeatedly measured time of the sentinel kernel.

Owns the figure of sentinel readings. The sentinel is one fixed launch, so any change of its time
comes from the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmperf.html_report.charts.markup import Html, figure, join, nothing_to_show, shorten, table
from llmperf.html_report.charts.points import WIDE, Guides, PlotText, Series, point_chart, thin
from llmperf.html_report.charts.quantities import (
    TIMES,
    Floats,
    count,
    counted,
    median,
    nanoseconds,
    ratio_tick,
    significant,
)
from llmperf.html_report.charts.scales import Scale, linear_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.dataset.facts import DatasetFacts
from llmperf_common.records import SentinelReading

_MAX_DRIFT_DEVICES = 8
_DRIFT_POINTS = 1_500


def drift_figure(facts: DatasetFacts) -> Html:
    """Return the sentinel kernel's time over the run, relative to each device's median."""
    by_device = _by_device(facts.view.sentinel)
    if not by_device:
        return nothing_to_show("Sentinel drift", "no sentinel reading was given")
    start_us = min(reading.at_us for readings in by_device.values() for reading in readings)
    shown = sorted(by_device, key=lambda d: (-len(by_device[d]), d))[:_MAX_DRIFT_DEVICES]
    series, rows = [], []
    for style, device_id in enumerate(shown):
        readings = by_device[device_id]
        times = np.array([reading.median_ns for reading in readings])
        minutes = np.array([(reading.at_us - start_us) / 60e6 for reading in readings])
        middle = median(times)
        kept = thin(len(times), _DRIFT_POINTS)
        series.append(
            Series(
                name=device_id, x=minutes[kept], y=times[kept] / middle, style=style, joined=True
            )
        )
        rows.append(_drift_row(device_id, times))
    y_low = min(0.98, *(float(one.y.min()) for one in series))
    y_high = max(1.02, *(float(one.y.max()) for one in series))
    text = PlotText(
        title="Sentinel kernel over the run",
        description=f"Each sentinel time ÷ its device's median. All drawn points lie between "
        f"{ratio_tick(y_low)} and {ratio_tick(y_high)}.",
    )
    chart = point_chart(
        series,
        _minutes_scale(series),
        linear_scale(y_low, y_high, "Sentinel time ÷ the device's median", ratio_tick, pad=0.05),
        text,
        guides=Guides(at_y=((1.0, ""),)),
        shape=WIDE,
    )
    total = sum(len(readings) for readings in by_device.values())
    caption = (
        "Time of the sentinel kernel, which runs every few tasks, during the run: "
        f"n = {count(total)} readings on {counted(len(by_device), 'device')}"
        f" ({len(shown)} drawn, at most {count(_DRIFT_POINTS)} points each, evenly spaced). A "
        "slope or step is a drift of the machine, not of a kernel."
    )
    headers = (
        "Device",
        "Readings",
        "Median",
        "Smallest ÷ median",
        "Largest ÷ median",
        "Last quarter ÷ first quarter",
    )
    names = [shorten(device_id, 12) for device_id in shown]
    listed = table("Sentinel readings by device.", headers, rows)
    return join(
        [figure([chart], caption, legend=legend(names, marks=True), columns=1, wide=True), listed]
    )


def _by_device(sentinel: Sequence[SentinelReading]) -> dict[str, list[SentinelReading]]:
    by_device: dict[str, list[SentinelReading]] = {}
    for reading in sentinel:
        if np.isfinite(reading.median_ns) and reading.median_ns > 0:
            by_device.setdefault(reading.device_id, []).append(reading)
    return {name: sorted(values, key=lambda r: r.at_us) for name, values in by_device.items()}


def _drift_row(device_id: str, times: Floats) -> tuple[str, ...]:
    middle = median(times)
    quarter = max(1, len(times) // 4)
    drift = median(times[-quarter:]) / median(times[:quarter])
    return (
        shorten(device_id, 24),
        count(len(times)),
        nanoseconds(middle),
        f"{significant(float(times.min()) / middle, 4)}{TIMES}",
        f"{significant(float(times.max()) / middle, 4)}{TIMES}",
        f"{significant(drift, 4)}{TIMES}",
    )


def _minutes_scale(series: list[Series]) -> Scale:
    return linear_scale(
        0.0, max(float(one.x.max()) for one in series), "Minutes since the first reading"
    )
