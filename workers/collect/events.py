"""The event stream: one JSON line for everything the loop does, in ``DIR/events/``.

Owns the file and the form of its lines. It is for people and tools that ask why; the dataset never depends on it.
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
    ("at_s", "When, in seconds since 1970 (UTC)."),
    ("event", "Its kind, see below."),
    ("worker_id", "`host/pid` of the process, as in the rows."),
    (
        "actor_id, node_id, job_id, seat",
        "On a cluster: Ray's ids, and the slot as messages and metrics call it.",
    ),
)
EVENT_KINDS: dict[str, tuple[str, str]] = {
    "claimed": ("task_id, kernel, device_class, token, attempt", "A task was leased."),
    "timed": (
        "task_id, sent_s, loaded_s, turns, buffers_s, processor, decades",
        "A task has left the device: when it was sent and loaded, the spans in which it held the device (`turns`), how long of them buffers took, the processor of the host that its launches came "
        "from (null: any), and by decade of the median how many configs, their wall time and the time in launches.",
    ),
    "finished": (
        "task_id, kernel, token, ok, failed, build_seconds, resources_seconds",
        "A task has its result, not yet durable; rows by status.",
    ),
    "committed": ("shard, tasks, epoch", "The results of these tasks are durable in this shard."),
    "refused": (
        "shard, stale_tasks",
        "The ledger took nothing of this shard: these tasks (by index in the plan) had gone to another worker.",
    ),
    "published": ("version, tasks", "A manifest lists everything committed so far."),
    "lost": (
        "tasks, why",
        "Leases were lost and their work dropped; tasks by index in the plan.",
    ),
    "seat": (
        "seat, state, why",
        "On a cluster, by the driver: a slot has another state (waiting, running, paused, done, drained, gone), and why.",
    ),
    "log": (
        "level, logger, message, tasks_in_hand, task_id",
        "A warning or an error of Python's `logging`, with the tasks that the worker was at (at most 16); `task_id` where it is about one.",
    ),
}
"""What ``event`` may be: its fields, and what it means."""


def open_event_log(
    folder: Path, worker_id: str, context: Mapping[str, str] | None = None
) -> EventLog:
    """Open the event log of a worker in the folder of those of its dataset."""
    name = "".join(letter if letter.isalnum() else "-" for letter in worker_id)
    return EventLog(folder / f"{name}.jsonl", worker_id=worker_id, context=context)


class EventLog:
    """A ``LoopObserver`` that writes JSON lines.

    Args:
        path: appended to; its folder is made.
        worker_id: written into every line.
        context: more that every line tells, as an actor's id and node.
    """

    def __init__(
        self, path: Path, *, worker_id: str, context: Mapping[str, str] | None = None
    ) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UnfitFileError(f"{path.parent} is not a folder: remove it") from None
        self._file: TextIO = open(open_to_append(path), "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._who = {"worker_id": worker_id, **(context or {})}
        self._lock = threading.Lock()  # what is logged comes from any thread

    def claimed(self, task: Task, lease: Lease) -> None:
        """A task was leased."""
        self._write(
            "claimed",
            task_id=task.task_id,
            kernel=task.kernel.name,
            device_class=task.device_class.name,
            token=lease.token,
            attempt=lease.attempt,
        )

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result, not yet durable."""
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
        """Results are durable."""
        self._write("committed", shard=stem, tasks=[r.task_id for r in results], epoch=epoch)

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """A shard was refused."""
        self._write("refused", shard=stem, stale_tasks=list(stale_tasks))

    def published(self, manifest: Manifest) -> None:
        """A manifest lists everything committed so far."""
        self._write("published", version=manifest.version, tasks=manifest.num_tasks)

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost."""
        self._write("lost", tasks=list(tasks), why=why)

    def note(self, event: str, **fields: Any) -> None:
        """Write any other event."""
        self._write(event, **fields)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, event: str, **fields: Any) -> None:
        told = masked_values(fields)
        line = {"at_s": round(time.time(), 3), "event": event, **self._who, **told}
        if event != "log":  # that was logged already
            _logger.debug("%s %s", event, told)
        # A full disk is reported where it matters, not by the log; a thread may log after the end.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
