"""Footprint bandwidth: the bytes of a launch's buffers divided by its time.

Owns the bytes of a launch's buffers, and the plot against the measured peaks. A footprint is the
size of the buffers, not the traffic. Reuse of data, or buffers that are touched only in part, can
therefore lift a point above the peaks.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.distribution import Layer, histogram_chart
from llmperf.html_report.charts.markup import Html, figure, join, nothing_to_show
from llmperf.html_report.charts.points import (
    MAX_POINTS,
    Density,
    Guides,
    PlotText,
    Series,
    density_chart,
    point_chart,
    shade_legend,
)
from llmperf.html_report.charts.quantities import (
    Bools,
    Floats,
    bytes_tick,
    count,
    count_tick,
    median,
    significant,
)
from llmperf.html_report.charts.scales import log_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.columns import array_of, floats, list_lengths, row_sums, texts
from llmperf.html_report.dataset.facts import DatasetFacts, words_of
from llmperf_common.records import ArgumentKind

_MAX_POSITIONS = 64
_DEVICE_KINDS = (ArgumentKind.GLOBAL_BUFFER.value, ArgumentKind.CONSTANT_BUFFER.value)
_NAME = "Footprint bandwidth"


def footprint_bytes(facts: DatasetFacts) -> Floats:
    """Return the bytes of each row's global and constant buffers; NaN where a size is unknown."""
    samples = facts.samples
    array = array_of(facts.view.samples, "args")
    if array is None or not len(array):
        return np.full(samples.num_rows, np.nan)
    members = array.flatten()
    lengths = list_lengths(facts.view.samples, "args")
    rows = np.repeat(np.arange(samples.num_rows), lengths)
    kinds = pc.fill_null(pc.struct_field(members, "kind"), "")
    in_memory = _numpy(pc.is_in(kinds, pa.array(_DEVICE_KINDS))).astype(bool)
    elements = _numpy(pc.struct_field(members, "elements").cast(pa.float64()))
    positions = _numpy(pc.fill_null(pc.struct_field(members, "position"), -1)).astype(np.int64)
    known = (positions >= 0) & (positions < _MAX_POSITIONS)
    place = np.clip(positions, 0, _MAX_POSITIONS - 1)
    sizes = np.where(known, _element_sizes(facts)[samples.kernel.codes[rows], place], np.nan)
    return row_sums(lengths, np.where(in_memory, elements * sizes, 0.0))


def _numpy(array: object) -> Floats:
    return np.asarray(array.to_numpy(zero_copy_only=False))  # type: ignore[attr-defined]


def _element_sizes(facts: DatasetFacts) -> Floats:
    """Return bytes per element by kernel code and argument position; NaN where not declared."""
    table = facts.view.kernels
    names = facts.samples.kernel.names
    sizes = np.full((len(names), _MAX_POSITIONS), np.nan)
    code_of = {name: code for code, name in enumerate(names)}
    args = array_of(table, "args")
    if args is None or not len(args):
        return sizes
    ids = texts(table, "kernel_id")
    members = args.flatten()
    rows = pc.list_parent_indices(args).to_pylist()
    positions = pc.struct_field(members, "position").to_pylist()
    element_bytes = pc.struct_field(members, "element_bytes").to_pylist()
    for row, position, num in zip(rows, positions, element_bytes, strict=True):
        code = code_of.get(ids[row])
        if code is not None and num is not None and 0 <= (position or 0) < _MAX_POSITIONS:
            sizes[code, position or 0] = num
    return sizes


def _peaks(facts: DatasetFacts) -> tuple[tuple[float, str], ...]:
    """Return the measured peaks on which all devices agree within 15 %."""
    lines = []
    for column, words in (("peak_dram_gbps", "DRAM peak"), ("peak_l2_gbps", "L2 peak")):
        values = floats(facts.view.devices, column)
        known = values[np.isfinite(values) & (values > 0)]
        if known.size and known.max() <= known.min() * 1.15:
            middle = float(np.median(known))
            lines.append((middle, f"{words} {significant(middle)} GB/s"))
    return tuple(lines)


def footprint_figure(facts: DatasetFacts) -> Html:
    """Return footprint bandwidth against footprint for all timed rows."""
    if not facts.view.kernels.num_rows:
        return nothing_to_show(_NAME, "the kernels table has no row, so no element size is known")
    size = footprint_bytes(facts)
    drawn = facts.samples.timed & np.isfinite(size) & (size > 0)
    if not drawn.any():
        return nothing_to_show(_NAME, "no timed row has buffers of known size")
    svg, shades = _draw(facts, size, drawn)
    histogram = _histogram(facts, size, drawn)
    left_out = int((facts.samples.timed & ~drawn).sum())
    caption = (
        f"Footprint bandwidth against footprint; n = {count(int(drawn.sum()))}. The footprint is "
        "the size of all global and constant buffers of a launch; the footprint bandwidth is the "
        "footprint divided by the warm median time. The footprint is not the traffic: reuse and "
        "partly touched buffers can lift points above the bandwidth of the memory. Right: the same "
        "bandwidths by regime. Dashed: measured peaks on which all devices agree. Not shown: "
        f"{count(left_out)} timed rows without buffers of known size."
    )
    key = legend([words_of(name) for name in facts.regimes], title="Right")
    if shades:
        key = join([shade_legend(shades, "Left, rows"), key])
    return figure([svg, histogram], caption, legend=key)


def _histogram(facts: DatasetFacts, size: Floats, drawn: Bools) -> Html:
    samples = facts.samples
    gbps = np.where(drawn, size / np.where(drawn, samples.median_ns, 1.0), np.nan)
    layers = [
        Layer(name=words_of(name), values=gbps[drawn & samples.regime.is_value(name)], style=style)
        for style, name in enumerate(facts.regimes)
    ]
    text = PlotText(
        title="Footprint bandwidth by regime",
        description=f"Median {significant(median(gbps))} GB/s over {count(int(drawn.sum()))} rows.",
    )
    x = log_scale(gbps[drawn], "Footprint ÷ warm median, GB/s", count_tick)
    guides = Guides(at_x=tuple((value, "") for value, _ in _peaks(facts)))
    return histogram_chart(layers, x, text, guides=guides, label="Rows")


def _draw(facts: DatasetFacts, size: Floats, drawn: Bools) -> tuple[Html, dict[int, str]]:
    gbps = size[drawn] / facts.samples.median_ns[drawn]
    guides = Guides(at_y=_peaks(facts))
    x = log_scale(size[drawn], "Footprint of the launch's buffers", bytes_tick)
    y = log_scale(gbps, "Footprint ÷ warm median, GB/s", count_tick)
    low, middle, high = (significant(float(q)) for q in np.quantile(gbps, (0.05, 0.5, 0.95)))
    text = PlotText(
        title="Footprint bandwidth against footprint",
        description=f"Half of the rows lie below {middle} GB/s; 5 % below {low}, 95 % below "
        f"{high}.",
    )
    if gbps.size > MAX_POINTS:
        density: Density = density_chart(size[drawn], gbps, x, y, text, guides=guides)
        return density.svg, density.shades
    return point_chart([Series(name="rows", x=size[drawn], y=gbps)], x, y, text, guides=guides), {}
