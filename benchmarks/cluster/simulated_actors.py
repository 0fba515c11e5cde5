"""Actors of a cluster with simulated GPUs: the shipped loop, ledger and store, recorded task times.

Owns one process of such actors. Each actor has a loop that is stepped when its next event is due.
Every call of the ledger and every file access is timed. Ledger calls are round trips to a real
server. A thread writes and fsyncs shards, as in a worker. The bytes of a shard are random and only
have the size of encoded results (``recorded_bytes``), because the actors' own hosts do the
encoding.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis  # noqa: TID251

from cluster.ledger.redis import RedisLocation
from cluster.ledger.timed_ledger import TimedLedger
from llmperf_common.ledger.attach import attach
from llmperf_common.ledger.protocol import Holder, Lease, Ledger
from llmperf_common.records import TaskResult
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry
from llmperf_common.store.tables.shard import ShardFile
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_device,
    make_device_class,
    make_kernel,
    make_result,
)
from workers.collect.heartbeat import HeartbeatWriter
from workers.collect.loop import CollectLoop
from workers.collect.loop_interfaces import EndReason
from workers.collect.observers import SilentObserver
from workers.collect.self_report import SelfReport
from workers.config import LedgerConfig, StoreConfig
from workers.execution.executor import FinishedTask
from workers.plan.plan import Task

PLAN_HASH = "simulated-cluster"
NUM_TASKS = 10_000_000
CLAIM_AHEAD = 38
"""Tasks that an actor holds at once: about as many as a real actor on a host with an H200 and 16
processors (``workers/execution/limits.py`` has the rule)."""
_POLL_S = 0.2
_SAMPLE_BYTES, _TASK_BYTES = 84, 2_420
"""Bytes of the recorded run's shards for each row of ``samples`` and for each task."""
_MOST_ROWS = 400

_SCRIPTS = {"elect_publisher": "elect"}
"""Maps a call of the ledger to its script's name, where the two differ."""


@dataclass(kw_only=True)
class Spent:
    """The seconds of every single call, and sums over one process."""

    calls_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_tasks: int = 0
    num_rows: int = 0
    num_steps: int = 0
    steps_s: float = 0.0
    late_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    refused: int = 0
    committed: list[int] = field(default_factory=list)

    def called(self, call: str, seconds: float) -> None:
        """Record the seconds of a call of the ledger."""
        self.calls_s[f"ledger {_SCRIPTS.get(call, call)}"].append(seconds)

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Record how long the body takes."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.calls_s[what].append(time.perf_counter() - began_s)


class TimedFilesystem(PosixFilesystem):
    """A folder with timed reads and durable writes, separately for shards and manifests."""

    def __init__(self, root: Path, spent: Spent) -> None:
        super().__init__(root)
        self._spent = spent

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file, timed."""
        with self._spent.call(f"{_kind(name)} write and fsync"):
            return super().put_if_absent(name, data)

    def read_bytes(self, name: str) -> bytes:
        """Read a file, timed."""
        with self._spent.call(f"{_kind(name)} read"):
            return super().read_bytes(name)


def _kind(name: str) -> str:
    return "shard" if "/" in name else "manifest"


class Tasks:
    """A plan of ten million tasks that are made on demand."""

    plan_hash = PLAN_HASH

    def __init__(self) -> None:
        self._kernel = make_kernel()
        self._class = make_device_class("h200")
        result = make_result(self._kernel, [good_outcome(0, i) for i in range(_MOST_ROWS)])
        self._samples = result.samples
        self._result = result

    def task(self, index: int) -> Task:
        """Return the task at an index."""
        return Task(
            index=index,
            task_id=f"{index:020x}",
            kernel=self._kernel,
            device_class=self._class,
        )

    def result(self, index: int, num_rows: int) -> TaskResult:
        """Return a result of ``num_rows`` rows."""
        samples = self._samples[:num_rows]
        return TaskResult(
            task_id=f"{index:020x}",
            device_class="h200",
            device_id=self._result.device_id,
            kernel=self._kernel,
            build=self._result.build,
            samples=samples,
            num_planned=num_rows,
        )


class ReplayExecutor:
    """A ``TaskExecutor`` whose device is busy with a task for as long as with a recorded task."""

    def __init__(self, tasks: Tasks, recorded: Sequence[tuple[float, int]], seed: int) -> None:
        self._tasks = tasks
        self._lengths = itertools.cycle(random.Random(seed).sample(recorded, len(recorded)))  # noqa: S311
        self._queue: list[Lease] = []
        self._current: tuple[float, int] | None = None
        self._ends_s = 0.0

    @property
    def due_s(self) -> float:
        """The time at which the task on the device ends."""
        return self._ends_s if self._current else float("inf")

    def num_wanted(self) -> int:
        """Return how many more tasks the executor would take now."""
        return CLAIM_AHEAD - len(self._queue)

    def submit(self, task: Task, lease: Lease) -> None:
        """Take a task."""
        del task
        self._queue.append(lease)
        if self._current is None:
            self._begin(time.monotonic())

    def poll(self, timeout_s: float) -> list[FinishedTask]:
        """Return the tasks that have finished by now, without a wait."""
        del timeout_s
        finished = []
        now_s = time.monotonic()
        while self._current is not None and self._ends_s <= now_s:
            lease, (_, rows) = self._queue.pop(0), self._current
            result = self._tasks.result(lease.task, rows)
            finished.append(FinishedTask(lease=lease, result=result))
            self._current = None
            if self._queue:
                self._begin(self._ends_s)  # a real device would start then
        return finished

    def _begin(self, at_s: float) -> None:
        self._current = next(self._lengths)
        self._ends_s = at_s + self._current[0]

    def leases(self) -> list[Lease]:
        """Return the leases of all tasks that were taken and not yet returned."""
        return list(self._queue)

    def abandon(self, tasks: Collection[int]) -> None:
        """Drop these tasks at once."""
        if self._queue and self._queue[0].task in tasks:
            self._current = None
        self._queue = [lease for lease in self._queue if lease.task not in tasks]

    def abandon_waiting(self) -> list[Lease]:
        """Drop the tasks not yet begun and return their leases."""
        waiting, self._queue = self._queue[1:], self._queue[:1]
        return waiting

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""


def recorded_bytes(
    stem: str,
    results: Sequence[TaskResult],
    tokens: Sequence[int],
    *,
    plan_hash: str,
    epoch: int,
) -> tuple[ShardFile, ShardFile]:
    """Replace ``encode_results``: return as many bytes, but random ones."""
    del tokens, plan_hash, epoch
    rows = sum(len(result.samples) for result in results)
    sizes = {"kernels": (len(results), _TASK_BYTES), "samples": (rows, _SAMPLE_BYTES)}
    kernels, samples = (
        ShardFile(
            name=f"{table}/{stem}.parquet",
            data=os.urandom(count * each),
            rows=count,
            tasks=len(results),
        )
        for table, (count, each) in sizes.items()
    )
    return kernels, samples


class _Counter(SilentObserver):
    def __init__(self, spent: Spent) -> None:
        self._spent = spent

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        del stem, epoch
        self._spent.num_tasks += len(results)
        self._spent.num_rows += sum(len(result.samples) for result in results)
        self._spent.committed += [int(result.task_id, 16) for result in results]

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        del stem
        self._spent.refused += len(stale_tasks)

    def published(self, manifest: Manifest) -> None:
        del manifest


def _heartbeat_of(number: int) -> HeartbeatWriter:
    """Return the writer of an actor's heartbeats, as a worker has it; all counts stay 0."""
    worker_id = f"simulated/{number}"
    ids = {"seat": f"node:{number:06}/gpu0", "actor_id": "0" * 32, "node_id": "0" * 56, "job_id": "0" * 8, "gpu_ids": "0"}  # fmt: skip
    report = SelfReport(worker_id=worker_id, device=make_device(), context=ids, read=lambda: None)
    return HeartbeatWriter(report, worker_id=worker_id, clock_s=time.monotonic)


def run_actors(
    numbers: Sequence[int],
    *,
    url: str,
    folder: Path,
    device: ShardEntry,
    recorded: Sequence[tuple[float, int]],
    seconds: float,
) -> Spent:
    """Let actors collect for ``seconds``; return the seconds that their calls took."""
    sys.setswitchinterval(0.0005)  # otherwise a thread that writes a shard delays an answer by 5 ms
    spent, tasks = Spent(), Tasks()
    fs = TimedFilesystem(folder, spent)
    dice = random.Random(numbers[0])  # noqa: S311
    began_cpu_s = time.process_time()
    with ThreadPoolExecutor(min(16, len(numbers)), "shard-writer") as writer:

        def loop_of(number: int) -> tuple[CollectLoop, ReplayExecutor]:
            executor = ReplayExecutor(tasks, recorded, number)

            def attached() -> Ledger:
                ledger_location = RedisLocation(redis.Redis.from_url(url), dataset=PLAN_HASH)
                who = f"sim/{number}"
                return TimedLedger(
                    attach(fs, ledger_location, plan_hash=PLAN_HASH, index_of=_unknown, who=who),
                    spent.called,
                )

            loop = CollectLoop(
                fs=fs,
                attach=attached,
                plan=tasks,
                tasks=range(NUM_TASKS),
                executor=executor,
                holder=Holder(host="simulated", boot_id="0" * 36, pid=number, start_ticks=0),
                device_shards=[device],
                clock_s=time.monotonic,
                new_stem=lambda epoch: f"e{epoch:06d}-simulated-{number}-{os.urandom(6).hex()}",
                store_config=StoreConfig(),
                ledger_config=LedgerConfig(),
                observer=_Counter(spent),
                encode=recorded_bytes,
                writer=writer,
                heartbeat=_heartbeat_of(number),
            )
            return loop, executor

        actors = [loop_of(number) for number in numbers]
        start_s = time.monotonic()
        # Starts are spread over one commit interval, because hosts never start at the same time.
        due = [(start_s + 4 * dice.random(), place) for place in range(len(actors))]
        heapq.heapify(due)
        while due[0][0] < start_s + seconds:
            due_s, place = heapq.heappop(due)
            now_s = time.monotonic()
            if due_s > now_s:
                time.sleep(due_s - now_s)
            loop, executor = actors[place]
            began_s = time.monotonic()
            spent.late_s.append(began_s - due_s)
            loop.step(0.0)
            ended_s = time.monotonic()
            spent.num_steps += 1
            spent.steps_s += ended_s - began_s
            heapq.heappush(due, (min(executor.due_s, ended_s + _POLL_S), place))
        spent.cpu_s = time.process_time() - began_cpu_s
        measured = {what: list(calls) for what, calls in spent.calls_s.items()}
        for loop, executor in actors:
            loop.request_stop(EndReason.TIME_IS_UP)
            executor.abandon([lease.task for lease in executor.leases()])
        for loop, _ in actors:
            loop.finish()
            loop.close()
        spent.calls_s = measured
    return spent


def _unknown(task_id: str) -> Any:
    raise KeyError(task_id)
