"""``llmperf status``."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Annotated, Any

import typer

from llmperf.cli.console import answer, answer_json, say
from llmperf.cli.ledger_option import SQLITE, LedgerFile, ledger_of
from llmperf.exits import CommandError, Exit
from llmperf_common.masking import public_url

_WATCH_INTERVAL_S = 2.0


def status(
    directory: Annotated[
        str | None,
        typer.Argument(help="A dataset: a folder or s3://BUCKET/PREFIX.", metavar="[DIR]"),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            metavar="URL",
            help="The Redis URL that `llmperf collect` was given. Without DIR: show all runs of "
            "that server; with DIR: show the run in DIR.",
        ),
    ] = None,
    ledger_file: LedgerFile = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat every 2 s until the run is complete.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show the progress of a run and the state of every process that works on it."""
    named = ledger_of(ledger, ledger_file)
    if named == SQLITE and ledger is None and ledger_file is None:
        named = None  # LLMPERF_LEDGER=sqlite is for collect; status needs no option for SQLite
    if directory is None and named is None:
        raise CommandError(
            Exit.USAGE, "name a dataset folder or a ledger: llmperf status DIR, or --ledger URL"
        )
    if watch and as_json:
        raise CommandError(
            Exit.USAGE, "--watch and --json cannot be combined: --json prints one document"
        )
    if named == SQLITE:
        raise CommandError(
            Exit.USAGE,
            "--ledger sqlite: must be redis://HOST:PORT; for a SQLite ledger name DIR alone",
        )

    def read() -> list[dict[str, Any]]:
        if directory is not None:
            return [_read(directory, named)]
        assert named is not None, "one of them was given"
        return _read_server(named)

    if as_json:
        states = read()
        answer_json(states[0] if directory is not None else {"runs": states})
    elif watch:
        _watch(read)
    else:
        _show(read())


def _read(directory: str, ledger: str | None) -> dict[str, Any]:
    from llmperf.run_state import Published, run_state  # noqa: PLC0415
    from llmperf_common.failures import OK_STATUS  # noqa: PLC0415
    from llmperf_common.store.files.filesystem import StoreError  # noqa: PLC0415
    from llmperf_common.store.files.location import open_filesystem  # noqa: PLC0415
    from llmperf_common.store.manifests.manifest import latest_manifest  # noqa: PLC0415
    from llmperf_common.store.manifests.run import RUN_LOCK, read_run  # noqa: PLC0415
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415

    fs = open_filesystem(directory)
    run = read_run(fs)
    if run is None:
        raise StoreError(
            f"{directory} is not a dataset (it has no run.json): name the folder that "
            "`llmperf collect --out` wrote"
        )
    manifest = latest_manifest(fs)
    statuses = open_dataset(fs).status_counts() if manifest else {OK_STATUS: 0}
    names = [item.name for item in run.device_classes]
    view = _view_of_server(ledger, run.run_id) if ledger else None
    if view is None:  # no server given, or LLMPERF_LEDGER names one that this run does not use
        view = _view_beside(directory, run)
        ledger = None if view is not None else ledger
    if view is not None and manifest is not None and view.epoch < manifest.epoch:
        view = None  # outdated: the run continues with another ledger
    state = run_state(
        location=directory,
        ledger=public_url(ledger) if ledger else ("sqlite" if view else None),
        plan_hash=run.plan_hash,
        created_at=run.created_at,
        num_tasks=run.num_tasks,
        device_classes=names,
        published=Published(
            manifest=manifest.version if manifest else None,
            epoch=manifest.epoch if manifest else None,
            num_tasks=manifest.num_tasks if manifest else 0,
            statuses=statuses,
        ),
        view=view,
    )
    if not state[
        "collecting"
    ]:  # the collector may not have reported yet, or may use a server's ledger
        state["collecting"] = fs.is_locked(RUN_LOCK)
    return state


def _view_beside(directory: str, run: Any) -> Any:
    """Return the content of the dataset's SQLite ledger; None if there is none."""
    from cluster.ledger.locations import sqlite_folder  # noqa: PLC0415
    from llmperf.collecting import state_folder  # noqa: PLC0415
    from llmperf_common.ledger.holder import boot_clock_s  # noqa: PLC0415
    from llmperf_common.ledger.looking import class_ranges, look_at_sqlite  # noqa: PLC0415

    ranges = class_ranges(run.num_tasks, len(run.device_classes))
    folder = sqlite_folder(directory, state_folder(), run.run_id)
    return look_at_sqlite(folder, ranges, now_s=boot_clock_s())


def _view_of_server(url: str, run_id: str) -> Any:
    runs = _runs(url, only=run_id)
    return runs[0].view if runs else None


def _read_server(url: str) -> list[dict[str, Any]]:
    from llmperf.run_state import run_state  # noqa: PLC0415

    return [
        run_state(
            location=run.location,
            ledger=public_url(url),
            plan_hash=run.plan_hash,
            created_at=run.created_at,
            num_tasks=run.num_tasks,
            device_classes=run.device_classes,
            published=None,
            view=run.view,
        )
        for run in _runs(url)
    ]


def _runs(url: str, *, only: str | None = None) -> Any:
    from llmperf_common.extras import require  # noqa: PLC0415

    require("redis", "cluster")
    from cluster.ledger.redis_runs import runs_on  # noqa: PLC0415

    return runs_on(url, only=only)


def _show(states: list[dict[str, Any]]) -> None:
    from llmperf.cli.status_screen import lines_of, screen_of  # noqa: PLC0415

    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415

        Console().print(screen_of(states), markup=False)
        return
    for line in lines_of(states):
        answer(line)


def _watch(read: Callable[[], list[dict[str, Any]]]) -> None:
    """Show the state every 2 s: in place on a terminal, otherwise as lines when it has changed."""
    with _stopped_by_signals() as stopped:
        _watch_until(stopped, read)
    if stopped.is_set():
        raise CommandError(Exit.INTERRUPTED, "interrupted")


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into an event.

    An exception such as KeyboardInterrupt could be lost: libraries may swallow it during clean-up.
    """
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stopped.is_set():
            raise KeyboardInterrupt  # second signal: the first had no effect
        stopped.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def _watch_until(stopped: threading.Event, read: Callable[[], list[dict[str, Any]]]) -> None:
    states = read()
    if sys.stdout.isatty():
        from rich.live import Live  # noqa: PLC0415

        from llmperf.cli.status_screen import screen_of  # noqa: PLC0415

        with Live(screen_of(states), auto_refresh=False) as live:
            while not _is_over(states) and not stopped.wait(_WATCH_INTERVAL_S):
                states = _read_again(read, states)
                live.update(screen_of(states), refresh=True)
        return
    _show(states)
    sys.stdout.flush()
    while not _is_over(states) and not stopped.wait(_WATCH_INTERVAL_S):
        before, states = states, _read_again(read, states)
        if states != before:
            _show(states)
            sys.stdout.flush()


def _is_over(states: list[dict[str, Any]]) -> bool:
    """Whether all runs are complete, and no worker is live (all have ended or become stale)."""
    from llmperf.run_state import is_complete  # noqa: PLC0415

    live = any(worker["live"] for state in states for worker in state["workers"])
    return bool(states) and all(is_complete(state) for state in states) and not live


def _read_again(
    read: Callable[[], list[dict[str, Any]]], before: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a new state, or ``before`` while the ledger's server does not answer."""
    from llmperf_common.ledger.protocol import LedgerAwayError  # noqa: PLC0415

    try:
        return read()
    except LedgerAwayError as error:
        say(f"{error}; asking again")
        return before
