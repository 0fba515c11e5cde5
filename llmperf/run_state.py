"""The state of a run as one document: tasks, rows, rates and every collecting process.

Owns the form of the document that ``llmperf status`` shows. The facts come as arguments, from a
dataset's manifest, from a ledger (``LedgerView``), or from both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmperf.heartbeats import heartbeats_of
from llmperf_common.failures import OK_STATUS
from llmperf_common.ledger.looking import LedgerView, class_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The published state of a dataset: its newest manifest, and its rows by status."""

    manifest: int | None
    epoch: int | None
    num_tasks: int
    statuses: Mapping[str, int]


def run_state(
    *,
    location: str,
    ledger: str | None,
    plan_hash: str,
    created_at: str,
    num_tasks: int,
    device_classes: Sequence[str],
    published: Published | None,
    view: LedgerView | None,
) -> dict[str, Any]:
    """Return the state of one run as a document.

    Args:
        location: the dataset's folder or URL.
        ledger: ``sqlite``, the server's URL without its password, or None if there is no ledger.
        plan_hash: plan hash of the run.
        created_at: time at which the run was created.
        num_tasks: number of tasks of the plan.
        device_classes: names in the plan's order.
        published: the dataset's own state; None if the dataset is not accessible from here. Rows
            are then counted from the workers' reports.
        view: the ledger's content; None if there is no current ledger.
    """
    told = heartbeats_of(view.workers) if view else []
    workers = [one for one in told if one.get("role") != "driver"]
    drivers = [one for one in told if one.get("role") == "driver"]
    live = [one for one in workers if one["live"]]
    classes = _classes(num_tasks, device_classes, view, live)
    statuses = dict(published.statuses) if published else _told(workers)
    done = published.num_tasks if published else sum(one["done"] or 0 for one in classes)
    eta_s = [
        one["eta_s"] for one in classes if one["done"] is not None and one["done"] < one["tasks"]
    ]
    return {
        "directory": location,
        "ledger": ledger,
        "plan_hash": plan_hash,
        "created_at": created_at,
        "device_classes": list(device_classes),
        "manifest": published.manifest if published else None,
        "epoch": view.epoch if view else published.epoch if published else None,
        "collecting": bool(live),
        "tasks": num_tasks,
        "tasks_done": done,
        "tasks_leased": sum(one["leased"] or 0 for one in classes) if view else None,
        "rows_from": "manifest" if published else "reports",
        "ok": statuses.get(OK_STATUS, 0),
        "failed": {code: n for code, n in sorted(statuses.items()) if code != OK_STATUS and n},
        "ok_per_s": round(sum(one.get("ok_per_s") or 0.0 for one in live), 3),
        "eta_s": max(eta_s) if eta_s and None not in eta_s else None,
        "classes": classes,
        "workers": workers,
        "drivers": drivers,
    }


def is_complete(state: Mapping[str, Any]) -> bool:
    """Whether every task of a run is done."""
    return bool(state["tasks_done"] >= state["tasks"])


def _classes(
    num_tasks: int, names: Sequence[str], view: LedgerView | None, live: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return each device class's progress; the ETA uses the last minute's rate of live workers."""
    found = []
    for number, (name, tasks) in enumerate(
        zip(names, class_ranges(num_tasks, len(names)), strict=True)
    ):
        counts = view.counts[number] if view else None
        rate = sum(one.get("tasks_per_s") or 0.0 for one in live if one.get("device_class") == name)
        left = len(tasks) - counts.done if counts else None
        found.append(
            {
                "device_class": name,
                "first_task": tasks.start,
                "tasks": len(tasks),
                "done": counts.done if counts else None,
                "leased": counts.leased if counts else None,
                "eta_s": round(left / rate, 1) if left is not None and rate else None,
            }
        )
    return found


def _told(workers: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of rows by status that all workers, including dead ones, have reported."""
    statuses: Counter[str] = Counter()
    for one in workers:
        statuses[OK_STATUS] += one.get("ok", 0)
        statuses.update(one.get("failed", {}))
    return statuses
