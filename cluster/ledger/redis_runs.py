"""The runs that a Redis server has ledgers of, for those who look at the server and not at a dataset.

Owns what is read there; nothing is changed. The client library stays behind ``ledger/redis.py``, ``redis_connection.py`` and ``redis_errors.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cluster.ledger.redis import RUNS_KEY, RedisLocation
from cluster.ledger.redis_connection import RedisClient, connect, told_as_ours
from llmperf_common.ledger.looking import LedgerView, class_ranges
from llmperf_common.ledger.protocol import LedgerLostError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnServer:
    """One run as its ``about`` record tells of it.

    ``view`` is None while it has no ledger that counts: the server was wiped or started anew, and no collector has
    built the next one yet.
    """

    run_id: str
    location: str
    plan_hash: str
    num_tasks: int
    device_classes: tuple[str, ...]
    created_at: str
    view: LedgerView | None


def runs_on(url: str, *, only: str | None = None) -> list[RunOnServer]:
    """Return the runs of a server, the oldest first.

    Args:
        url: of the server.
        only: the name of the one dataset to look at, as ``RedisLocation`` is given it.

    Raises:
        LedgerUrlError: The URL is none, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses us.
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
    about = json.loads(text)
    classes = tuple(about["device_classes"])
    return RunOnServer(
        run_id=about["run_id"] or dataset,
        location=about["location"],
        plan_hash=about["plan_hash"],
        num_tasks=about["num_tasks"],
        device_classes=classes,
        created_at=about["created_at"],
        view=_view(
            client,
            ledger_location,
            about["plan_hash"],
            class_ranges(about["num_tasks"], len(classes)),
        ),
    )


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
