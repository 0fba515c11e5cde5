"""A prediction as Python users get it: a JSON document with properties and a notebook table."""

from __future__ import annotations

from typing import Any

from llmperf_common.notebook import html_table

SWEEP_HEAD = ("local size", "time", "low", "high")
"""The columns of ``sweep_rows``."""


class Prediction(dict[str, Any]):
    """One prediction: a dictionary with the keys of ``llmperf predict --json``.

    ``json.dumps`` accepts it directly. The properties give the most used keys.

    >>> unsure = {"level": None, "low_ns": None, "high_ns": None}
    >>> one = Prediction(kernel="k", device="cpu", time_ns=1500.0, interval=unsure)
    >>> one.time_ns, one.interval_text()
    (1500.0, 'no calibrated interval: unlike the training data')
    """

    @property
    def time_ns(self) -> float:
        """The predicted median of warm launches, in nanoseconds of device time."""
        return float(self["time_ns"])

    @property
    def interval_ns(self) -> tuple[float, float] | None:
        """The interval's ends in ns; None where the launch is unlike the training data."""
        interval = self["interval"]
        if interval["level"] is None:
            return None
        return float(interval["low_ns"]), float(interval["high_ns"])

    @property
    def local_size_best(self) -> tuple[int, ...]:
        """The local size with the shortest predicted time, among sizes like those in training."""
        return tuple(self["local_size_best"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """The values used for missing arguments, and reasons why the time may be wrong."""
        return tuple(self["warnings"])

    def interval_text(self) -> str:
        """Return the interval in words."""
        interval = self["interval"]
        if interval["level"] is None:
            return "no calibrated interval: unlike the training data"
        return (
            f"{interval['level']:.0%} between {time_text(interval['low_ns'])} "
            f"and {time_text(interval['high_ns'])}"
        )

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        best = ",".join(map(str, self["local_size_best"]))
        rows = [
            ("time", time_text(self.time_ns)),
            ("interval", self.interval_text()),
            ("best local size", best),
            ("bound", self["bound"]),
            *(("warning", text) for text in self["warnings"]),
        ]
        title = f"{self['kernel']} on {self['device']}"
        page = html_table(title, ("what", "value"), rows)
        if "sweep" in self:
            page += html_table("local sizes, fastest first", SWEEP_HEAD, sweep_rows(self))
        return page


def sweep_rows(document: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return local size, time, low and high of each entry of ``sweep``; "-" without an interval."""
    return [
        (
            ",".join(map(str, row["local_size"])),
            time_text(row["time_ns"]),
            "-" if row["low_ns"] is None else time_text(row["low_ns"]),
            "-" if row["high_ns"] is None else time_text(row["high_ns"]),
        )
        for row in document["sweep"]
    ]


def time_text(nanoseconds: float) -> str:
    """Return a time as text in ns, µs, ms or s.

    >>> time_text(950), time_text(999.6), time_text(2.5e6)
    ('950 ns', '1 µs', '2.5 ms')
    """
    nanoseconds = float(f"{nanoseconds:.3g}")  # round first, because 999.6 ns must become 1 µs
    for limit, factor, unit in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if nanoseconds < limit:
            return f"{nanoseconds / factor:.3g} {unit}"
    return f"{nanoseconds / 1e9:.3g} s"
