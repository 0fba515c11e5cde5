"""Readable numbers, and the decades of time by which a report groups.

Owns the formatting of numbers and facts with units, and the time decades. Times are in nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Formatter = Callable[[float], str]

_NANOSECOND_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BINARY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DECIMAL_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))

LARGEST = 1e30
"""Maximum of a valid time, size or metric. Larger numbers are left out or clamped to an axis."""

NO_VALUE = "\u2013"
"""Text in place of a missing number."""
SPACE = "\u00a0"
"""The space between a number and its unit, where a line must not break."""
MINUS = "\u2212"
TIMES = "\u00d7"
"""The multiplication sign, which follows a ratio."""

DECADE_LABELS = (
    "<1 µs",
    "1\u201310 µs",
    "10\u2013100 µs",
    "0.1\u20131 ms",
    "1\u201310 ms",
    "10\u2013100 ms",
    "≥100 ms",
)
_DECADE_EDGES_NS = np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e8])
SHORT_LAUNCH_NS = 10_000.0
"""Time in nanoseconds below which a launch is mostly overhead. Metrics are given for all launches,
and for launches that take at least this time."""


def decade_of(times_ns: Floats) -> Ints:
    """Return the index of each time's decade in ``DECADE_LABELS``."""
    return np.searchsorted(_DECADE_EDGES_NS, times_ns, side="right").astype(np.int64)


def significant(value: float, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits, never in exponent form.

    >>> significant(1234.5), significant(0.012345), significant(0.0)
    ('1230', '0.0123', '0')
    """
    if not math.isfinite(value):
        return NO_VALUE
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}".replace("-", MINUS)


def short(value: float) -> str:
    """Return ``value`` without trailing zeros, for ticks.

    >>> short(2.0), short(0.25)
    ('2', '0.25')
    """
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def nanoseconds(value: float) -> str:
    """Return a time in ns, µs, ms or s.

    >>> nanoseconds(1234.0).split(SPACE), nanoseconds(999.96e3).split(SPACE)
    (['1.23', 'µs'], ['1.00', 'ms'])
    """
    return _with_unit(value, _NANOSECOND_UNITS, significant)


def nanoseconds_tick(value: float) -> str:
    """Return a time for an axis, without trailing zeros."""
    return _with_unit(value, _NANOSECOND_UNITS, short)


def _with_unit(value: float, units: tuple[tuple[float, str], ...], number: Formatter) -> str:
    if not math.isfinite(value):
        return NO_VALUE
    for scale, unit in units:
        if abs(value) >= scale * 0.9995:
            return f"{number(value / scale)}{SPACE}{unit}"
    return f"{number(value / units[-1][0])}{SPACE}{units[-1][1]}"


def count(value: float) -> str:
    r"""Return a whole number with thin spaces between thousands.

    >>> count(1234567)
    '1\u202f234\u202f567'
    """
    return f"{round(value):,}".replace(",", "\u202f") if math.isfinite(value) else NO_VALUE


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 kernel``, ``12 families``."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def count_tick(value: float) -> str:
    """Return a count for an axis: 1, 100, 10K, 3M."""
    for scale, unit in _COUNT_UNITS:
        if abs(value) >= scale:
            return f"{short(value / scale)}{unit}"
    return short(value)


def factor(value: float) -> str:
    """Return a ratio with three significant digits and a multiplication sign."""
    return f"{significant(value)}{TIMES}" if math.isfinite(value) else NO_VALUE


def share(part: float, whole: float) -> str:
    """Return a part of a whole in percent; a dash if the whole is 0."""
    return percent(part / whole) if whole else NO_VALUE


def percent(fraction: float) -> str:
    """Return a fraction in percent with one decimal, or with more decimals below 1 %.

    >>> [percent(value).replace(SPACE, " ") for value in (0.123, 0.0012, 1.0)]
    ['12.3 %', '0.12 %', '100 %']
    """
    if not math.isfinite(fraction):
        return NO_VALUE
    value = fraction * 100
    if value == 0 or abs(value) >= 99.95:
        return f"{count(value)}{SPACE}%".replace("-", MINUS)
    words = f"{value:.1f}".replace("-", MINUS) if abs(value) >= 1 else significant(value, 2)
    return f"{words}{SPACE}%"


def percent_tick(fraction: float) -> str:
    """Return a fraction in percent for an axis."""
    return f"{short(fraction * 100)}{SPACE}%"


def points_tick(value: float) -> str:
    """Return a value in percent for an axis."""
    return f"{short(value)}{SPACE}%"


def ratio_tick(value: float) -> str:
    """Return a ratio for an axis: ``2x``."""
    return f"{short(value)}{TIMES}"


def num_bytes(value: float) -> str:
    """Return a size in binary units.

    >>> num_bytes(3 * 2**20).split(SPACE), num_bytes(12).split(SPACE)
    (['3', 'MiB'], ['12', 'B'])
    """
    if not math.isfinite(value):
        return NO_VALUE
    for scale, unit in _BINARY_UNITS:
        if value >= scale:
            return f"{short(value / scale)}{SPACE}{unit}"
    return f"{value:.0f}{SPACE}B"


def share_tick(fraction: float) -> str:
    """Return a share for an axis from 0 to 100 %."""
    return f"{fraction * 100:.0f}{SPACE}%"


def bytes_tick(value: float) -> str:
    """Return a size in decimal units for a logarithmic axis: 10 kB, 1 MB."""
    return _with_unit(value, _DECIMAL_BYTES, short)


_UNITS: dict[Formatter, str] = {
    nanoseconds: "ns",
    nanoseconds_tick: "ns",
    num_bytes: "bytes",
    bytes_tick: "bytes",
    percent: "fraction",
    percent_tick: "fraction",
    share_tick: "fraction",
    points_tick: "%",
    factor: "ratio",
    ratio_tick: "ratio",
}


def with_unit(label: str, formatter: Formatter) -> str:
    """Return an axis label with the unit of its formatter's input.

    >>> with_unit("Warm median", nanoseconds_tick), with_unit("Work-groups", count_tick)
    ('Warm median [ns]', 'Work-groups')
    """
    unit = _UNITS.get(formatter)
    return f"{label} [{unit}]" if unit else label


_FACT_UNITS: tuple[tuple[str, Formatter], ...] = (
    ("percent", lambda value: percent(value / 100)),
    ("share", percent),
    ("ns", nanoseconds),
    ("bytes", num_bytes),
    ("seconds", lambda value: nanoseconds(value * 1e9)),
    ("gbps", lambda value: f"{significant(value)}{SPACE}GB/s"),
    ("gflops", lambda value: f"{significant(value)}{SPACE}GFLOP/s"),
    ("mhz", lambda value: f"{significant(value, 4)}{SPACE}MHz"),
)
"""The last word of a fact's name, and the formatter of the fact's number."""


def fact_name(name: str) -> str:
    """Return a stored name as words, without the unit, which is shown with the value.

    >>> fact_name("noise_floor_median_ape_percent"), fact_name("corpus_sha256")
    ('Noise floor median APE', 'Corpus SHA-256')
    """
    words = name.split("_")
    if len(words) > 1 and words[-1] in dict(_FACT_UNITS) and words[-1] != "share":
        words = words[:-1]
    text = " ".join(_ACRONYMS.get(word, word) for word in words)
    return text[:1].upper() + text[1:]


_ACRONYMS = {"ape": "APE", "mape": "MAPE", "sha256": "SHA-256", "id": "ID", "num": "number of"}


def fact(name: str, value: object) -> str:
    """Return a stored value as readable text; the last word of its name decides the unit.

    >>> fact("floor_percent", 3.65631411235759).split(SPACE)
    ['3.7', '%']
    >>> fact("censored_share", {"all": 0.0125, "idle_sm": 0.5}).replace(SPACE, " ")
    'all: 1.2 %, idle sm: 50.0 %'
    """
    is_too_large = isinstance(value, int | float) and abs(value) > LARGEST
    if value is None or value == "" or is_too_large:
        return NO_VALUE
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | float | np.number):
        return _fact_number(name, float(value))
    if isinstance(value, Mapping):
        members = ((str(key), one) for key, one in value.items())
        return _listed(
            f"{key.replace('_', ' ')}: {_member(name, key, one)}" for key, one in members
        )
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return _listed(fact(name, one) for one in value)
    return _moment(value) if name.endswith("_at") else str(value)


def _moment(value: object) -> str:
    """Return an ISO 8601 time without fractions of seconds; any other text unchanged."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return str(value)
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname() or ''}".strip()


def _member(name: str, key: str, value: object) -> str:
    # {"share": {"all": 0.1}} uses the unit of the outer name, {"device": {"clock_mhz": 1.0}} uses
    # the unit of the inner name.
    words = fact(key if key.rpartition("_")[2] in dict(_FACT_UNITS) else name, value)
    return f"({words})" if isinstance(value, Mapping) and value else words


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts) or NO_VALUE


def _fact_number(name: str, value: float) -> str:
    shown = dict(_FACT_UNITS).get(name.rpartition("_")[2])
    if shown is not None:
        return shown(value)
    return count(value) if value.is_integer() else significant(value)


def quantiles(values: Floats, *fractions: float) -> list[float]:
    """Return quantiles of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return [math.nan] * len(fractions)
    return [float(q) for q in np.quantile(finite, fractions)]


def median(values: Floats) -> float:
    """Return the median of the finite values; NaN if there are none."""
    return quantiles(values, 0.5)[0]
