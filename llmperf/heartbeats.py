"""Read the heartbeats of a ledger; other programs may have written there, too.

Owns the fields of a heartbeat that ``llmperf status`` shows, and their bounds. A field that does
not fit is left out, as if the worker had not reported it. So all readers see well-formed values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llmperf_common.failures import FailureCode
from llmperf_common.files.foreign_json import parse_json
from llmperf_common.ledger.protocol import LONGEST_REPORT, MOST_REPORTS, WorkerReport

STALE_S = 15.0
"""Seconds without a report after which a worker counts as dead or cut off from the ledger. Workers
report every 2 s."""
LONGEST_TEXT = 300
"""Maximum number of characters of a text; the rest is cut off. Workers report at most as many."""
_MOST_ENTRIES = 20
"""Maximum number of entries of a list or table; a driver reports at most 10 idle slots."""
_CODES = frozenset(code.value for code in FailureCode)
_FINAL = ("ended", "drained", "failed")
_LARGEST_COUNT = 2**53
_LARGEST_RATE = 1e12
_HOTTEST_C = 1000.0
_DIGITS = 5
"""Number of decimals of a rate. A smaller rate than 1e-5 would make an ETA infinite."""


def heartbeats_of(reports: Sequence[WorkerReport]) -> list[dict[str, Any]]:
    """Return the heartbeats of the newest ``MOST_REPORTS`` reports, in the order of the reports."""
    newest = sorted(range(len(reports)), key=lambda number: reports[number].age_s)[:MOST_REPORTS]
    return [heartbeat_of(reports[number]) for number in sorted(newest)]


def heartbeat_of(report: WorkerReport) -> dict[str, Any]:
    """Return a worker's report, with its age and whether the worker is live or stale."""
    document = _document(report.document)
    told: dict[str, Any] = {"worker": str(report.worker)[:LONGEST_TEXT]}
    for name, read in _READERS.items():
        with contextlib.suppress(KeyError, ValueError):
            told[name] = read(document[name])
    is_final = told.get("state") in _FINAL
    return {
        **told,
        "age_s": round(report.age_s, 1),
        "stale": not is_final and report.age_s > STALE_S,
        "live": not is_final and report.age_s <= STALE_S,
    }


def _document(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > LONGEST_REPORT:
        return {}
    try:
        document = parse_json(text.encode("utf-8", "replace"))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:LONGEST_TEXT]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
        raise ValueError("not a count")
    return value


def _rate(value: Any) -> float:
    return round(_number(value, 0.0, _LARGEST_RATE), _DIGITS)


def _share(value: Any) -> float | None:
    return None if value is None else _number(value, 0.0, 1.0)


def _temperature(value: Any) -> float | None:
    return None if value is None else _number(value, -_HOTTEST_C, _HOTTEST_C)


def _number(value: Any, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError("not a number in this range")
    number: float = value
    return number


def _failures(value: Any) -> dict[str, int]:
    """Return the counts of the codes that we know; a newer collector may report others, too."""
    if not isinstance(value, dict):
        raise ValueError("not a table of counts")
    return _counts({name: number for name, number in value.items() if name in _CODES})


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > max(_MOST_ENTRIES, len(_CODES)):
        raise ValueError("not a table of counts")
    return {_text(name): _count(number) for name, number in value.items()}


def _texts(value: Any) -> list[str]:
    return [_text(one) for one in _entries(value)]


def _slots(value: Any) -> list[dict[str, str]]:
    return [_slot(one) for one in _entries(value)]


def _slot(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("not a slot")
    return {name: _text(value.get(name)) for name in ("seat", "state", "why")}


def _entries(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value[:_MOST_ENTRIES]


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "role", "host", "seat", "node_id", "actor_id", "job_id", "gpu_ids", "device", "device_class", "device_uuid", "started_at", "state",
                "why", "last_error",
            ),
            _text,
        ),
        **dict.fromkeys(("pid", "ok", "tasks_done", "tasks_in_hand"), _count),
        **dict.fromkeys(("ok_per_s", "ok_per_s_overall", "tasks_per_s", "seconds"), _rate),
        **dict.fromkeys(("busy_share", "throttled_share"), _share),
        "temperature_c": _temperature,
        "failed": _failures,
        "seats": _counts,
        "not_collecting": _slots,
        "missing_labels": _texts,
    }
)  # fmt: skip
"""How to read each field: the function raises ``ValueError`` if a value does not fit."""
