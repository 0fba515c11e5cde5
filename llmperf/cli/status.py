"""``llmperf status``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from llmperf.cli.console import answer, answer_json
from llmperf.exits import CommandError, Exit

_WATCH_INTERVAL_S = 2.0


def status(
    directory: Annotated[
        str | None,
        typer.Argument(help="A dataset: a folder or s3://BUCKET/PREFIX.", metavar="[DIR]"),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="URL", help="A Redis ledger: not in this release."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat every 2 s until it is complete.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say how far a run is."""
    if ledger is not None:
        raise CommandError(
            Exit.USAGE, "--ledger redis://... is not in this release: name the dataset folder"
        )
    if directory is None:
        raise CommandError(Exit.USAGE, "name a dataset folder: llmperf status DIR")
    if watch and as_json:
        raise CommandError(
            Exit.USAGE, "--watch and --json do not go together: --json prints one document"
        )
    while True:
        state = _read(directory)
        if as_json:
            answer_json(state)
        else:
            answer(_line(state))
        if not watch or state["tasks_done"] == state["tasks"]:
            return
        time.sleep(_WATCH_INTERVAL_S)


def _read(directory: str) -> dict[str, Any]:
    from llmperf_common.failures import OK_STATUS  # noqa: PLC0415
    from llmperf_common.store.filesystem import StoreError  # noqa: PLC0415
    from llmperf_common.store.location import open_filesystem  # noqa: PLC0415
    from llmperf_common.store.manifest import latest_manifest  # noqa: PLC0415
    from llmperf_common.store.reader import open_dataset  # noqa: PLC0415
    from llmperf_common.store.run import RUN_LOCK, read_run  # noqa: PLC0415

    fs = open_filesystem(directory)
    run = read_run(fs)
    if run is None:
        raise StoreError(
            f"{directory} is no dataset (it has no run.json): name the --out folder of a collect"
        )
    manifest = latest_manifest(fs)
    statuses = open_dataset(fs).status_counts() if manifest else {}
    with fs.lock(RUN_LOCK, exclusive=True, wait=False) as alone:
        collecting = not alone
    return {
        "directory": directory,
        "plan_hash": run.plan_hash,
        "device_classes": [item.name for item in run.device_classes],
        "manifest": manifest.version if manifest else None,
        "epoch": manifest.epoch if manifest else None,
        "collecting": collecting,
        "tasks": run.num_tasks,
        "tasks_done": manifest.num_tasks if manifest else 0,
        "ok": statuses.get(OK_STATUS, 0),
        "failed": {code: n for code, n in sorted(statuses.items()) if code != OK_STATUS},
    }


def _line(state: dict[str, Any]) -> str:
    failed = ", ".join(f"{code} {n:,}" for code, n in state["failed"].items()) or "none"
    done, total = state["tasks_done"], state["tasks"]
    how = (
        "collecting now"
        if state["collecting"]
        else ("complete" if done == total else "not running")
    )
    return f"{done:,} of {total:,} tasks, {state['ok']:,} ok samples, failed: {failed} ({how})"
