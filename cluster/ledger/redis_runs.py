"""List the runs that have ledgers on a Redis server, for viewers without the dataset.

Writes nothing. Only ``ledger/redis.py``, ``redis_connection.py`` and ``redis_errors.py`` use the
client library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from cluster.ledger.redis import RUNS_KEY, RedisLocation
from cluster.ledger.redis_connection import RedisClient, connect, told_as_ours
from cluster.ledger.redis_errors import LedgerForeignError
from cluster.ledger.redis_values import RunOnServer, run_of
from llmperf_common.ledger.looking import LedgerView, class_ranges
from llmperf_common.ledger.protocol import LedgerLostError

_log = logging.getLogger(__name__)


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
        found = [_run(client, name) for name in _names(client) if only is None or name == only]
    finally:
        client.close()
    return sorted((run for run in found if run), key=lambda run: (run.created_at, run.run_id))


def _names(client: RedisClient) -> Iterator[str]:
    with told_as_ours(client):
        members = client.smembers(RUNS_KEY)
    for member in members:
        try:
            yield member.decode() if isinstance(member, bytes) else member
        except UnicodeDecodeError:
            _log.warning("%s has the name %r, which no run has", RUNS_KEY, member[:80])


def _run(client: RedisClient, dataset: str) -> RunOnServer | None:
    """Return a run; None, after a warning, if another program has written to its keys."""
    ledger_location = RedisLocation(client, dataset=dataset)
    record = ledger_location.key("about")
    try:
        with told_as_ours(client):
            text = client.get(record)
            if not isinstance(text, bytes):
                return None
            run = run_of(text, record)
        ranges = class_ranges(run.num_tasks, len(run.device_classes))
        view = _view(ledger_location, run.plan_hash, ranges)
        return replace(run, run_id=run.run_id or dataset, view=view)
    except LedgerForeignError as error:
        _log.warning("the run %r is not shown: %s", dataset, error)
        return None


def _view(
    ledger_location: RedisLocation, plan_hash: str, ranges: tuple[range, ...]
) -> LedgerView | None:
    for epoch in ledger_location.epochs()[:1]:
        ledger = ledger_location.open(epoch, plan_hash)
        if ledger is None:
            return None
        try:
            counts = tuple(ledger.counts(tasks) for tasks in ranges)
            return LedgerView(epoch=epoch, counts=counts, workers=tuple(ledger.workers()))
        except LedgerLostError:
            return None
    return None
