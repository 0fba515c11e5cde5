"""Write and read the values of a ledger's keys; other programs may have written there, too.

Owns the form of these values, and the checks of what a server returns: a value that no ledger
writes raises ``ForeignValueError``, never another error. ``told_as_ours`` turns it into an error of
the ledger. The scripts check the values that they calculate with in the same way, by functions of
``lua/prelude.lua``.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmperf_common.files.foreign_json import check_characters, parse_json
from llmperf_common.ledger.looking import LedgerView
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.manifests.run import RunRecord

MAX_TASKS = 1 << 32
"""Maximum number of tasks of a run: a Redis string, which has one bit for each task, may have
512 MiB."""
MAX_CLASSES = 1_000
"""Maximum number of device classes of a run that is shown; each class costs one request. There are
fewer GPU models."""
_EPOCH = re.compile(rb"[1-9][0-9]{0,11}")


class ForeignValueError(ValueError):
    """A key of a ledger has a value that no ledger writes; the message names the value."""


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
    view: LedgerView | None = None


def about_text(run: RunRecord, location: str) -> str:
    """Return the run's facts as JSON, for viewers of the server.

    Tasks are numbered by device class, in the order given; each class has the same number of tasks.
    """
    return json.dumps(
        {
            "location": location,
            "run_id": run.run_id,
            "plan_hash": run.plan_hash,
            "num_tasks": run.num_tasks,
            "device_classes": [one.name for one in run.device_classes],
            "created_at": run.created_at,
        }
    )


def run_of(text: bytes, key: str) -> RunOnServer:
    """Return the run of which ``about_text`` has written the facts, without a view.

    A run without an id has the id ''.

    Args:
        text: the value.
        key: its key, for messages.

    Raises:
        ForeignValueError: The text is not the record of a run, or its numbers are too large.
    """
    try:
        about = parse_json(text)
        # A path of the host may hold bytes that are no text. The other facts are texts of ours.
        location = str(about.pop("location")).encode("utf-8", "replace").decode()
        check_characters(about)
        classes = about["device_classes"]
        if not isinstance(classes, list) or len(classes) > MAX_CLASSES:
            raise ForeignValueError(f"{key} has no list of at most {MAX_CLASSES} device classes")
        num_tasks = operator.index(about["num_tasks"])
        if not 0 <= num_tasks <= MAX_TASKS:
            raise ForeignValueError(f"the number of tasks in {key} is not in 0 to {MAX_TASKS}")
        return RunOnServer(
            run_id=str(about["run_id"] or ""),
            location=location,
            plan_hash=str(about["plan_hash"]),
            num_tasks=num_tasks,
            device_classes=tuple(map(str, classes)),
            created_at=str(about["created_at"]),
        )
    except ForeignValueError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignValueError(f"{key} is not the record of a run ({error!r})") from None


def entry_text(entry: ShardEntry, commit: str) -> str:
    """Return a shard as the ledger stores it, with the name of the commit that has recorded it."""
    return json.dumps(
        {
            "rows": entry.rows, "bytes": entry.bytes, "sha256": entry.sha256,
            "tasks": entry.tasks, "commit": commit,
        }
    )  # fmt: skip


def entry_of(name: bytes, text: bytes) -> ShardEntry:
    """Return the shard that ``entry_text`` has written. Raises ForeignValueError."""
    try:
        found = parse_json(text)
        check_characters(found)
        return ShardEntry(
            name=name.decode(), rows=found["rows"], bytes=found["bytes"],
            sha256=found["sha256"], tasks=found["tasks"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        raise ForeignValueError(f"the entry of the shard {ascii(name)[:80]}") from None


def epochs_of(members: Iterable[object]) -> list[int]:
    """Return the epochs among the members of a set, the newest first.

    Other members are left out: no ledger has their name, so there is nothing to open or remove.

    >>> epochs_of([b"2", b"x", b"10", b"-1", b"007"])
    [10, 2]
    """
    found = (one for one in members if isinstance(one, bytes) and _EPOCH.fullmatch(one))
    return sorted(map(int, found), reverse=True)


def shown(text: bytes) -> str:
    """Return a text that is only shown; bytes that are not UTF-8 become a question mark."""
    return text.decode("utf-8", "replace")
