"""Presentation of the state of runs: lines of text in a log, tables on a terminal.

Owns the texts; the state comes from ``run_state.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmperf.run_state import is_complete
from llmperf_common.files.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEAD = (
    "worker", "class", "state", "ok", "ok/s", "tasks", "in hand", "busy", "temp", "throttled", "failed", "age", "note",
)  # fmt: skip
_NOTE_LIMIT = 60
_CELL_LIMIT = 100
"""Maximum number of characters of a cell."""
MOST_SHOWN = 500
"""Maximum number of workers that are shown, the newest ones: a table of 10,000 takes a minute."""


def lines_of(states: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return text lines for output that is not a terminal: totals per run, one line per worker."""
    if not states:
        return ["no run in this ledger"]
    lines = []
    for state in states:
        lines.append(
            totals(state) if len(states) == 1 else f"{state['directory']}: {totals(state)}"
        )
        lines += [f"  {line}" for line in _driver_lines(state)]
        lines += [f"  {_worker_line(one)}" for one in _ordered(state)]
        lines += [f"  {line}" for line in _more_lines(state)]
    return lines


def screen_of(states: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the state of runs as tables for a terminal."""
    from rich.console import Group  # noqa: PLC0415  (keeps `--help` fast)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = []
    for state in states:
        parts += [Text(visible(f"{state['directory']}  plan {state['plan_hash']}"), style="bold")]
        lines = [_class_line(one) for one in state["classes"]] + _driver_lines(state)
        parts += [Text(visible(line)) for line in (totals(state), *(f"  {one}" for one in lines))]
        if state["workers"]:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for name in _HEAD:
                table.add_column(name, overflow="fold")
            for one in _ordered(state):
                style = "red" if one["stale"] or one.get("state") in ("failed", "drained") else ""
                table.add_row(*(Text(cell) for cell in _cells(one)), style=style)
            parts += [table, *(Text(line) for line in _more_lines(state))]
    return Group(*parts) if parts else Text(lines_of([])[0])


def totals(state: Mapping[str, Any]) -> str:
    """Return one line of totals of a run."""
    failed = ", ".join(f"{code} {n:,}" for code, n in state["failed"].items()) or "none"
    leased = f", {state['tasks_leased']:,} leased" if state["tasks_leased"] else ""
    rate = f", {state['ok_per_s']:,.1f} ok/s" if state["collecting"] else ""
    eta = f", ETA {_span(state['eta_s'])}" if state["collecting"] and state["eta_s"] else ""
    rows = "" if state["rows_from"] == "manifest" else " (reported by its workers)"
    return (
        f"{state['tasks_done']:,} of {state['tasks']:,} tasks{leased}, {state['ok']:,} ok samples, "
        f"failed: {failed}{rows}{rate}{eta} ({_how(state)})"
    )


def _how(state: Mapping[str, Any]) -> str:
    if is_complete(state):
        return "complete"
    if state["collecting"]:
        return "collecting now"
    if any(one["live"] and one.get("seats", {}).get("paused") for one in state["drivers"]):
        return "paused, see below"
    if state["ledger"] not in (None, "sqlite") and state["tasks_leased"] is None:
        return (
            "no ledger: the Redis server was wiped or restarted; a collector will rebuild the "
            "ledger from the shards"
        )
    return "not running"


def _driver_lines(state: Mapping[str, Any]) -> list[str]:
    """Return a line about the newest driver, and a line for each of its idle slots."""
    if not state["drivers"]:
        return []
    one = min(state["drivers"], key=lambda driver: driver["age_s"])
    slots = ", ".join(f"{n} {name}" for name, n in sorted(one.get("seats", {}).items()))
    how = "STALE" if one["stale"] else one.get("state", "-")
    lines = [
        f"driver {one.get('host')}/{one.get('pid')}  {how}  slots: {slots}  "
        f"reported {_span(one['age_s'])} ago"
    ]
    lines += [
        f"  {slot['seat']}  {slot['state']}  {slot['why']}"
        for slot in one.get("not_collecting", [])
    ]
    return lines + [f"  {text}" for text in one.get("missing_labels", [])]


def _class_line(one: Mapping[str, Any]) -> str:
    done = "?" if one["done"] is None else f"{one['done']:,}"
    leased = f", {one['leased']:,} leased" if one["leased"] else ""
    eta = f", ETA {_span(one['eta_s'])}" if one["eta_s"] else ""
    last = one["first_task"] + one["tasks"] - 1
    return (
        f"{one['device_class']}: {done} of {one['tasks']:,} tasks "
        f"({one['first_task']}-{last}){leased}{eta}"
    )


def _ordered(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the newest ``MOST_SHOWN`` workers of a run, sorted by host and GPU."""
    return sorted(
        sorted(state["workers"], key=lambda one: one["age_s"])[:MOST_SHOWN],
        key=lambda one: (one.get("host", ""), one.get("seat", ""), one["worker"]),
    )


def _more_lines(state: Mapping[str, Any]) -> list[str]:
    """Return a line about the workers that are not shown, if any."""
    num_left = len(state["workers"]) - MOST_SHOWN
    return [f"and {num_left:,} more workers: see --json"] if num_left > 0 else []


def _worker_line(one: Mapping[str, Any]) -> str:
    """Return a line about a worker; empty values are left out."""
    cells = _cells(one)
    units = {3: " ok", 4: " ok/s", 5: " tasks", 6: " in hand", 7: " busy", 9: " throttled"}
    parts = [
        (
            f"{'failed ' if number == 10 else 'reported ' if number == 11 else ''}"
            f"{cell}{units.get(number, '')}"
        )
        for number, cell in enumerate(cells)
        if cell not in ("", "-")
    ]
    return "  ".join(parts)


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    failed = sum(one.get("failed", {}).values())
    note = one.get("why") if one.get("state") in ("drained", "failed") else one.get("last_error")
    age = f"{_span(one['age_s'])} ago"
    cells = (
        one.get("seat") or one["worker"],
        one.get("device_class", "-"),
        "STALE" if one["stale"] else one.get("state", "-"),
        f"{one.get('ok', 0):,}",
        f"{one.get('ok_per_s', 0.0):,.1f}",
        f"{one.get('tasks_done', 0):,}",
        f"{one.get('tasks_in_hand', 0):,}",
        _share(one.get("busy_share")),
        "-" if one.get("temperature_c") is None else f"{one['temperature_c']:.0f} C",
        _share(one.get("throttled_share")),
        f"{failed:,}" if failed else "-",
        age,
        (note or "")[:_NOTE_LIMIT],
    )
    return tuple(visible(str(cell))[:_CELL_LIMIT] for cell in cells)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _span(seconds: float) -> str:
    """Return a duration as text in seconds, minutes or hours.

    >>> [_span(value) for value in (7.4, 300.0, 9000.0)]
    ['7 s', '5 min', '2.5 h']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
