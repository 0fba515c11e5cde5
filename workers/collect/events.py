"""The event stream: one JSON line for everything that the loop does, in ``DIR/events/``.

Owns the file and the form of its lines. People and tools search the lines for the causes of
problems; the dataset never depends on them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from llmperf_common.failures import Failure
from llmperf_common.files.plain_files import UnfitFileError, open_to_append
from llmperf_common.ledger.protocol import Lease
from llmperf_common.masking import masked_values
from llmperf_common.records import TaskResult
from llmperf_common.store.manifests.manifest import Manifest
from workers.plan.plan import Task

_logger = logging.getLogger(__name__)

ON_EVERY_LINE = (
    ("at_s", "Time of the event, in seconds since 1970 (UTC)."),
    ("event", "The kind of event, see below."),
    ("worker_id", "`host/pid` of the process, as in the rows."),
    (
        "actor_id, node_id, job_id, seat",
        "On a cluster: Ray's ids, and the name of the slot in messages and metrics.",
    ),
)
EVENT_KINDS: dict[str, tuple[str, str]] = {
    "claimed": ("task_id, kernel, device_class, token, attempt", "A task was leased."),
    "timed": (
        "task_id, planned_s, checked_s, built_s, sent_s, loaded_s, turns, buffers_s, processor, decades",
        "A task has left the device. Seconds of the host's monotonic clock: `planned_s`, when it "
        "had its launch configs, `checked_s`, when its access check had ended (null: none), "
        "`built_s`, `sent_s` and `loaded_s`, when it was built, sent to a child and loaded there; "
        "`turns`: the spans in which it held the device; `buffers_s`: the part of these spans "
        "that was spent on buffers; `processor`: the host's processor that issued the launches "
        "(null: any); `decades`: for each power of ten of the median launch time in ns, the "
        "number of configs, their wall time and their launch time.",
    ),
    "finished": (
        "task_id, kernel, token, ok, failed, build_seconds, resources_seconds",
        "A task has its result, which is not yet durable; rows by status.",
    ),
    "committed": ("shard, tasks, epoch", "The results of these tasks are durable in this shard."),
    "refused": (
        "shard, stale_tasks",
        "The ledger did not accept this shard, because other workers had leased these tasks "
        "(indices in the plan) in the meantime.",
    ),
    "published": ("version, tasks", "A manifest lists everything committed so far."),
    "lost": (
        "tasks, why",
        "Leases were lost, so the work on these tasks (indices in the plan) was dropped.",
    ),
    "seat": (
        "seat, state, why",
        "On a cluster, written by the driver: the slot's new state (waiting, running, paused, "
        "done, drained, gone) and the reason.",
    ),
    "log": (
        "level, logger, message, tasks_in_hand, task_id",
        "A warning or an error of Python's `logging`, with the tasks that the worker had in hand "
        "(at most 16); `task_id` if the message is about one task.",
    ),
}
"""For each value of ``event``: its fields and its meaning."""


def open_event_log(
    folder: Path, worker_id: str, context: Mapping[str, str] | None = None
) -> EventLog:
    """Open the event log of a worker in its dataset's folder of event logs."""
    name = "".join(letter if letter.isalnum() else "-" for letter in worker_id)
    return EventLog(folder / f"{name}.jsonl", worker_id=worker_id, context=context)


class EventLog:
    """A ``LoopObserver`` that writes JSON lines.

    Args:
        path: the file to append to; its folder is created if missing.
        worker_id: written into every line.
        context: further fields of every line, such as an actor's id and node.
    """

    def __init__(
        self, path: Path, *, worker_id: str, context: Mapping[str, str] | None = None
    ) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UnfitFileError(f"{path.parent} is not a folder: remove it") from None
        self._file: TextIO = open(  # noqa: SIM115
            open_to_append(path), "a", encoding="utf-8", buffering=1
        )
        self._who = {"worker_id": worker_id, **(context or {})}
        self._lock = threading.Lock()  # any thread may log

    def claimed(self, task: Task, lease: Lease) -> None:
        """Write that a task was leased."""
        self._write(
            "claimed",
            task_id=task.task_id,
            kernel=task.kernel.name,
            device_class=task.device_class.name,
            token=lease.token,
            attempt=lease.attempt,
        )

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """Write that a task has its result, which is not yet durable."""
        failed = [s.outcome.code.value for s in result.samples if isinstance(s.outcome, Failure)]
        resources = result.build.resources if result.build else None
        self._write(
            "finished",
            task_id=result.task_id,
            kernel=result.kernel.name,
            token=lease.token,
            ok=len(result.samples) - len(failed),
            failed={code: failed.count(code) for code in sorted(set(failed))},
            build_seconds=result.build.seconds if result.build else None,
            resources_seconds=resources.seconds if resources else None,
        )

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Write that results are durable."""
        self._write("committed", shard=stem, tasks=[r.task_id for r in results], epoch=epoch)

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """Write that the ledger did not accept a shard."""
        self._write("refused", shard=stem, stale_tasks=list(stale_tasks))

    def published(self, manifest: Manifest) -> None:
        """Write that a manifest lists everything committed so far."""
        self._write("published", version=manifest.version, tasks=manifest.num_tasks)

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Write that leases were lost."""
        self._write("lost", tasks=list(tasks), why=why)

    def note(self, event: str, **fields: Any) -> None:
        """Write an event of any other kind."""
        self._write(event, **fields)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, event: str, **fields: Any) -> None:
        told = masked_values(fields)
        line = {"at_s": round(time.time(), 3), "event": event, **self._who, **told}
        if event != "log":  # ``logging`` has already handled the message of a "log" event
            _logger.debug("%s %s", event, told)
        # OSError: writing shards reports a full disk. ValueError: a thread may log after the close.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
