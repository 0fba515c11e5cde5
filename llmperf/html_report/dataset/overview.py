"""The head of a dataset's report: counts (planned = ok + failed + pending), provenance, devices."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.markup import (
    Html,
    definition_table,
    join,
    nothing_to_show,
    section,
    shorten,
    side_by_side,
    tag,
)
from llmperf.html_report.charts.markup import table as html_table
from llmperf.html_report.charts.quantities import (
    NO_VALUE,
    Formatter,
    count,
    counted,
    fact,
    fact_name,
    nanoseconds,
    num_bytes,
    percent,
    share,
    significant,
)
from llmperf.html_report.columns import array_of, categorical, floats, texts
from llmperf.html_report.dataset.facts import DatasetFacts
from llmperf_common.store.tables.noise import noise_of, relative_iqrs

_MAX_DEVICES = 64
_MAX_FACT_CHARS = 300
_TURNED_DEVICES = 4
_BESIDE_DEVICES = 2


def _rounded(value: float) -> str:
    return significant(value, 4)


_DEVICE_NUMBERS: tuple[tuple[str, str, Formatter], ...] = (
    ("Compute units", "compute_units", count),
    ("Highest clock, MHz", "max_clock_mhz", _rounded),
    ("Memory", "global_memory_bytes", num_bytes),
    ("Last-level cache", "last_level_cache_bytes", num_bytes),
    ("Peak DRAM, GB/s", "peak_dram_gbps", significant),
    ("Peak L2, GB/s", "peak_l2_gbps", significant),
    ("Peak FP32, GFLOP/s", "peak_fp32_gflops", significant),
    ("Peak FP64, GFLOP/s", "peak_fp64_gflops", significant),
    ("Launch floor", "launch_floor_ns", nanoseconds),
    ("Observed timer step", "timer_step_ns", nanoseconds),
)
_SPREAD_OF_PEAK = {
    "peak_dram_gbps": "peak_dram_spread",
    "peak_l2_gbps": "peak_l2_spread",
    "peak_fp32_gflops": "peak_fp32_spread",
    "peak_fp64_gflops": "peak_fp64_spread",
}


def overview_section(facts: DatasetFacts) -> Html:
    """Return counts, provenance and devices."""
    pooled = Html("")
    if facts.num_classes() > 1:
        words = (
            f"The figures below pool the rows of {facts.num_classes()} device classes unless they "
            "say otherwise."
        )
        pooled = tag("p", words, class_="warning")
    return section(
        "Dataset at a glance",
        "overview",
        _tiles(facts),
        _accounting(facts),
        _noise_warning(facts),
        pooled,
        _facts_of_run(facts),
    )


def _noise_warning(facts: DatasetFacts) -> Html:
    """Return a warning if the machine was disturbed while the rows were timed."""
    noise = noise_of(relative_iqrs(facts.view.samples), facts.view.sentinel)
    return tag("p", f"Warning: {noise.warning}.", class_="warning") if noise.warning else Html("")


def _tiles(facts: DatasetFacts) -> Html:
    samples = facts.samples
    num_ok = int(samples.ok.sum())
    num_failed = samples.num_rows - num_ok
    kernels = facts.kernels.by_id
    num_kernels = len(kernels) or len(samples.kernel.counts())
    families = len({words.family_id for words in kernels.values()})
    # Without a plan the number of pending rows is unknown; a 0 would claim that the run is
    # complete.
    planned, pending = facts.view.num_planned, facts.view.num_pending
    tiles = [
        ("kernels", count(num_kernels), counted(families, "family", "families")),
        ("planned", count(planned) if planned is not None else NO_VALUE, "launch configs"),
        ("ok", count(num_ok), share(num_ok, samples.num_rows) + " of rows"),
        ("failed", count(num_failed), share(num_failed, samples.num_rows) + " of rows"),
        ("pending", count(pending) if planned is not None else NO_VALUE, "no row yet"),
    ]
    return tag("div", *(tile(*words) for words in tiles), class_="tiles")


def tile(name: str, value: str, note: str) -> Html:
    """Return one large number with its name and a note."""
    return tag("div", tag("b", value), tag("span", name), tag("small", note), class_="tile")


def _accounting(facts: DatasetFacts) -> Html:
    """Return a text about planned = ok + failed + pending; a gap means lost or duplicate rows."""
    planned, pending = facts.view.num_planned, facts.view.num_pending
    if planned is None:
        return tag(
            "p",
            "The number of planned launch configs is not known, so the rows cannot be checked "
            "against the plan.",
            class_="nothing",
        )
    rows = facts.samples.num_rows
    num_ok = int(facts.samples.ok.sum())
    sum_words = (
        f"{count(num_ok)} ok + {count(rows - num_ok)} failed + {count(pending)} pending = "
        f"{count(rows + pending)}"
    )
    if rows + pending == planned:
        return tag("p", f"Every planned launch config is accounted for: {sum_words} planned.")
    gap = planned - rows - pending
    return tag(
        "p",
        f"The rows do not add up to the plan: {sum_words}, but {count(planned)} were planned "
        f"(difference {count(gap)}).",
        class_="warning",
    )


def _facts_of_run(facts: DatasetFacts) -> Html:
    parts = (_provenance(facts), _devices(facts))
    narrow = 0 < facts.view.devices.num_rows <= _BESIDE_DEVICES
    return side_by_side(*parts) if narrow else join(parts)


def _provenance(facts: DatasetFacts) -> Html:
    samples = facts.view.samples
    rows = [("Dataset", facts.view.title)]
    version = facts.view.manifest_version
    rows.append(("Manifest version", str(version) if version is not None else NO_VALUE))
    versions = sorted({int(v) for v in floats(samples, "harness_version") if math.isfinite(v)})
    rows.append(("Harness version of the rows", ", ".join(map(str, versions)) or NO_VALUE))
    rows.append(("Measured", _measured_when(samples)))
    counted = categorical(samples, "worker_id").counts()
    rows.append(("Worker processes", count(len(counted)) if samples.num_rows else NO_VALUE))
    for name, value in sorted(facts.view.run.items(), key=lambda item: str(item[0])):
        words = shorten(fact(str(name), value), _MAX_FACT_CHARS)
        rows.append((fact_name(str(name)), words))
    return definition_table("Provenance of the rows.", rows)


def _measured_when(samples: object) -> str:
    moments = array_of(samples, "created_at")
    if moments is None or len(moments) == 0:
        return NO_VALUE
    ends = pc.min_max(moments).as_py()
    if ends["min"] is None:
        return NO_VALUE
    return f"{ends['min']:%Y-%m-%d %H:%M:%S} to {ends['max']:%Y-%m-%d %H:%M:%S} UTC"


def _devices(facts: DatasetFacts) -> Html:
    devices = facts.view.devices
    if not devices.num_rows:
        return nothing_to_show("Devices", "the devices table has no row")
    caption = (
        f"Devices (n = {count(devices.num_rows)}). Peaks were measured by LLMPerf's kernels before "
        "the run, not taken from data sheets. A peak is the best of several rounds; the number in "
        "brackets is (best - median round) / best. A dash means that the value was not measured."
    )
    headers, rows = _device_cells(facts)
    if devices.num_rows <= _TURNED_DEVICES:
        # Few devices get one column each, which fits the page. Many devices get one row each, and
        # the table scrolls.
        turned = [(name, *(row[i] for row in rows)) for i, name in enumerate(headers)]
        return html_table(caption, turned[0], turned[1:], align="l" + "w" * len(rows))
    if len(rows) > _MAX_DEVICES:
        caption += f" Only the first {_MAX_DEVICES} are shown."
    return html_table(caption, headers, rows[:_MAX_DEVICES], align="llll")


def _device_cells(facts: DatasetFacts) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    devices = facts.view.devices
    counts = facts.samples.device.counts()
    numbers = [_device_number(devices, column, show) for _, column, show in _DEVICE_NUMBERS]
    words = [texts(devices, name) for name in ("name", "device_class", "device_id", "driver")]
    rows = []
    for row, (name, device_class, device_id, driver) in enumerate(zip(*words, strict=True)):
        cells = (values[row] for values in numbers)
        labels = (
            shorten(name, 60),
            shorten(device_class, 30),
            shorten(device_id, 24),
            shorten(driver, 40),
        )
        rows.append((*labels, *cells, count(counts.get(device_id, 0))))
    headers = (
        "Device",
        "Class",
        "Id",
        "Driver",
        *(item[0] for item in _DEVICE_NUMBERS),
        "Rows in the dataset",
    )
    return headers, rows


def _device_number(devices: pa.Table, column: str, show: Formatter) -> list[str]:
    """Return a number of each device as text; a peak with the spread of its rounds, if known."""
    cells = [show(float(value)) for value in floats(devices, column)]
    if column not in _SPREAD_OF_PEAK:
        return cells
    spreads = floats(devices, _SPREAD_OF_PEAK[column])
    return [
        f"{cell} ({percent(float(spread))})" if math.isfinite(spread) else cell
        for cell, spread in zip(cells, spreads, strict=True)
    ]
