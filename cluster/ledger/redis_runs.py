"""List the runs that have ledgers on a Redis server, for viewers without the dataset.

Writes nothing. Only ``ledger/redis.py``, ``redis_connection.py`` and ``redis_errors.py`` use the
client library.
"""

from __future__ import annotations

import json
import logging
import operator
from dataclasses import dataclass, replace

from cluster.ledger.redis import RUNS_KEY, RedisLocation
from cluster.ledger.redis_connection import RedisClient, connect, told_as_ours
from llmperf_common.ledger.looking import LedgerView, class_ranges
from llmperf_common.ledger.protocol import LedgerLostError

_log = logging.getLogger(__name__)
_MAX_TASKS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnServer:
    """One run, from its ``about`` record.

    ``view`` is the content of the run's ledger. It is None if the server was wiped or restarted,
    and no collector has built the next ledger yet.
    """

    run_id: str
    location: str
    plan_hash: str
    num_tasks: int
    device_classes: tuple[str, ...]
    created_at: str
    view: LedgerView | None


def runs_on(url: str, *, only: str | None = None) -> list[RunOnServer]:
    """Return the runs of a server, the oldest run first.

    Args:
        url: URL of the server.
        only: the name of the only dataset to return, as ``RedisLocation`` takes it.

    Raises:
        LedgerUrlError: The URL is invalid, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses to serve us.
    """
    client = connect(url)
    try:
        with told_as_ours(client):
            members = client.smembers(RUNS_KEY)
            names = [one.decode() if isinstance(one, bytes) else one for one in members]
            found = [_run(client, name) for name in names if only is None or name == only]
    finally:
        client.close()
    return sorted((run for run in found if run), key=lambda run: (run.created_at, run.run_id))


def _run(client: RedisClient, dataset: str) -> RunOnServer | None:
    ledger_location = RedisLocation(client, dataset=dataset)
    text = client.get(ledger_location.key("about"))
    if not isinstance(text, bytes):
        return None
    try:
        about = json.loads(text)
        run = RunOnServer(
            run_id=str(about["run_id"] or dataset),
            location=str(about["location"]),
            plan_hash=str(about["plan_hash"]),
            num_tasks=operator.index(about["num_tasks"]),
            device_classes=tuple(map(str, about["device_classes"])),
            created_at=str(about["created_at"]),
            view=None,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        run = None
    if run is None or not 0 <= run.num_tasks < _MAX_TASKS:
        _log.warning(
            "%s does not hold the record of a run: it is not shown", ledger_location.key("about")
        )
        return None
    ranges = class_ranges(run.num_tasks, len(run.device_classes))
    return replace(run, view=_view(client, ledger_location, run.plan_hash, ranges))


def _view(
    client: RedisClient, ledger_location: RedisLocation, plan_hash: str, ranges: tuple[range, ...]
) -> LedgerView | None:
    epochs = sorted(
        (int(one) for one in client.smembers(ledger_location.key("epochs"))), reverse=True
    )
    for epoch in epochs[:1]:
        ledger = ledger_location.open(epoch, plan_hash)
        if ledger is None:
            return None
        try:
            counts = tuple(ledger.counts(tasks) for tasks in ranges)
            return LedgerView(epoch=epoch, counts=counts, workers=tuple(ledger.workers()))
        except LedgerLostError:
            return None
    return None
