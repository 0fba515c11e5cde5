"""``collect``: everything put together for one worker on one machine.

Owns the order of a run: device, plan, ``run.json``, ledger, loop, sweep, card, summary. The command line and,
later, the cluster's actor call it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from llmperf_common.analysis import Analysis
from llmperf_common.failures import OK_STATUS
from llmperf_common.ledger.attach import LedgerHome, process_name
from llmperf_common.ledger.holder import boot_clock_s, this_process
from llmperf_common.ledger.protocol import Holder
from llmperf_common.records import Device
from llmperf_common.store.analysis_rows import ANALYSIS_COLUMNS, analysis_from_row
from llmperf_common.store.card import write_card
from llmperf_common.store.filesystem import PosixFilesystem
from llmperf_common.store.manifest import ShardEntry, latest_manifest
from llmperf_common.store.reader import Dataset, open_dataset
from llmperf_common.store.run import RUN_LOCK, RunRecord, read_run
from llmperf_common.store.sweep import sweep
from workers.config import CollectConfig
from workers.corpus import Corpus
from workers.device.interface import DeviceRef
from workers.device.nvml import open_monitor
from workers.device.ownership import GpuClaim
from workers.events import EventLog
from workers.joining import attach_ledger, device_of_run, join_plan
from workers.loop import CollectLoop, LoopObserver, StopReason
from workers.observers import Fanout, Tally
from workers.pipeline import DevicePipeline
from workers.plan import Plan
from workers.run_children import DeviceLostError
from workers.scratch import scratch_folder

_POLL_S = 0.2
_TIDY_ATTEMPTS = 5
_MAX_TASKS_COUNTED = 2000
"""Drawing a task's configs takes milliseconds: the plan's count is held against the dataset for so many tasks,
and beyond so many pending ones ``samples_per_kernel`` stands for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSummary:
    """How a run ended; ``num_planned == num_ok + num_failed + num_pending`` is asserted."""

    stop_reason: StopReason
    num_planned: int
    num_ok: int
    num_failed: int
    num_pending: int
    num_tasks: int
    num_tasks_done: int
    failures_by_code: dict[str, int]
    device: Device
    plan_hash: str
    seconds: float

    def __post_init__(self) -> None:
        if self.num_planned != self.num_ok + self.num_failed + self.num_pending:
            raise AssertionError(f"rows were lost or doubled: {self}")


class Control:
    """How the outside reaches a running collect."""

    def __init__(self) -> None:
        self.num_interrupts = 0
        self.is_collecting = False
        """Whether the loop runs, so that there is a task in hand to finish."""

    def interrupt(self) -> None:
        """Once: finish the task in hand and stop. Twice: drop it and stop."""
        self.num_interrupts += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What is known when the loop is about to begin; an observer is made from it."""

    plan: Plan
    device: Device
    statuses: dict[str, int]
    """Rows by status that an earlier run left."""
    num_tasks_done: int
    skipped: tuple[tuple[str, str], ...]
    """Files of the corpus without any kernel, and why."""


def collect(
    *,
    corpus: Corpus,
    out: Path,
    ref: DeviceRef,
    config: CollectConfig,
    control: Control,
    observe: Callable[[RunStart], LoopObserver],
    home_of: Callable[[RunRecord], LedgerHome],
) -> CollectSummary:
    """Collect ``corpus`` on one device into ``out``, from wherever an earlier run stopped.

    Args:
        corpus: the kernels.
        out: dataset folder: new, empty, or of the same plan.
        ref: the device.
        config: the whole tree.
        control: for Ctrl-C.
        observe: makes the observer of progress.
        home_of: where the ledgers of a run are kept.

    Raises:
        StoreError: ``out`` cannot be used (``ForeignRunError``: it belongs to another run).
        DeviceLostError: The device cannot be opened.
        GpuTakenError: Somebody else is at work on it.
    """
    started_s = time.monotonic()
    holder = this_process()
    fs = PosixFilesystem(out)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder(holder))
        allow_busy = config.limits.allow_busy_gpu
        claim = stack.enter_context(GpuClaim(ref, out=out, allow_busy=allow_busy))
        pipeline = DevicePipeline(
            ref=ref,
            config=config,
            scratch=scratch,
            worker_id=process_name(holder),
            quiet=not ref.selector.startswith(("cuda", "replay")),
        )
        stack.callback(pipeline.close)
        found = pipeline.open_device(measure_peaks=False)
        claim.take(found)
        pipeline.get_ready()
        plan = join_plan(fs, corpus, config, found)
        run = read_run(fs)
        assert run is not None, "it was joined"
        with fs.lock(RUN_LOCK, exclusive=False, wait=True):
            device, device_entry = device_of_run(fs, found, plan, pipeline)
            start = _run_start(out, fs, plan, device, corpus)
            tally = Tally(start.statuses)
            events = EventLog(_event_path(out, holder), worker_id=process_name(holder))
            stack.callback(events.close)
            monitor = open_monitor(device, poll_hz=config.timing.poll_hz)
            if monitor is not None:
                stack.enter_context(monitor)
            pipeline.use(plan, device, note=events.note, monitor=monitor)
            loop = _make_loop(
                fs=fs,
                home=home_of(run),
                plan=plan,
                pipeline=pipeline,
                holder=holder,
                device=device,
                device_entry=device_entry,
                config=config,
                observer=Fanout((events, tally, observe(start))),
                writer=stack.enter_context(ThreadPoolExecutor(1, "shard-writer")),
            )
            stack.callback(loop.close)
            try:
                _drive(loop, control, config, tally, started_s)
            except DeviceLostError:
                loop.finish()  # what has finished is kept
                raise
            loop.finish()
        _tidy(fs, out, loop)
        return summarise(out, plan, device, loop.stop_reason, seconds=time.monotonic() - started_s)


def summarise(
    out: Path, plan: Plan, device: Device, reason: StopReason, *, seconds: float
) -> CollectSummary:
    """Count what the dataset holds against what the plan wants."""
    dataset = open_dataset(out)
    statuses = dataset.status_counts()
    done = _analyses(dataset)
    rows = _rows_with_config(dataset)
    pending = [t for t in map(plan.task, range(plan.num_tasks)) if t.task_id not in done]
    num_pending = sum(map(plan.num_samples, pending[:_MAX_TASKS_COUNTED]))
    num_pending += plan.plan_config.samples_per_kernel * len(pending[_MAX_TASKS_COUNTED:])
    num_planned = dataset.num_samples + num_pending
    full = plan.plan_config.samples_per_kernel
    for task in map(plan.task, range(min(plan.num_tasks, _MAX_TASKS_COUNTED))):
        # No plan gives more: only a task with fewer rows is worth the drawing of its configs.
        if rows.get(task.task_id, full) != full:
            num_planned += plan.num_samples(task, done[task.task_id]) - rows[task.task_id]
    num_ok = statuses.pop(OK_STATUS, 0)
    return CollectSummary(
        stop_reason=reason,
        num_planned=num_planned,
        num_ok=num_ok,
        num_failed=sum(statuses.values()),
        num_pending=num_pending,
        num_tasks=plan.num_tasks,
        num_tasks_done=len(done),
        failures_by_code=statuses,
        device=device,
        plan_hash=plan.plan_hash,
        seconds=seconds,
    )


def _analyses(dataset: Dataset) -> dict[str, Analysis | None]:
    """Return the analysis of each finished task, by task id; None where the kernel was not analysed."""
    columns = ["task_id", *ANALYSIS_COLUMNS]
    return {
        row["task_id"]: analysis_from_row(row)
        for table in dataset.iter_table("kernels", columns)
        for row in table.to_pylist()
    }


def _rows_with_config(dataset: Dataset) -> Counter[str]:
    """Return each task's rows that have a launch config; a kernel that failed before has one without."""
    found: Counter[str] = Counter()
    for table in dataset.iter_samples(["task_id", "global_size"]):
        has_config = pc.greater(pc.list_value_length(table.column("global_size")), 0)
        found.update(table.filter(has_config).column("task_id").to_pylist())
    return found


def _make_loop(
    *,
    fs: PosixFilesystem,
    home: LedgerHome,
    plan: Plan,
    pipeline: DevicePipeline,
    holder: Holder,
    device: Device,
    device_entry: ShardEntry,
    config: CollectConfig,
    observer: LoopObserver,
    writer: Executor,
) -> CollectLoop:
    who = process_name(holder)
    return CollectLoop(
        fs=fs,
        attach=lambda: attach_ledger(fs, home, plan, who=who),
        plan=plan,
        tasks=plan.tasks_of_class(device.device_class),
        executor=pipeline,
        holder=holder,
        device_shards=[device_entry],
        clock_s=boot_clock_s,  # as the ledger's: a suspended host must not think its leases fresh
        new_stem=lambda epoch: f"e{epoch:06d}-{_slug(who)}-{secrets.token_hex(6)}",
        store_config=config.store,
        ledger_config=config.ledger,
        observer=observer,
        writer=writer,
    )


def _drive(
    loop: CollectLoop, control: Control, config: CollectConfig, tally: Tally, started_s: float
) -> None:
    """Step the loop until it is over, passing on the reasons to stop early."""
    limits = config.limits
    aborted = False
    control.is_collecting = True
    while not loop.is_over:
        if control.num_interrupts:
            loop.request_stop(StopReason.INTERRUPTED)
        if control.num_interrupts > 1 and not aborted:
            loop.abort_tasks()
            aborted = True
        if limits.max_time_s is not None and time.monotonic() - started_s > limits.max_time_s:
            loop.request_stop(StopReason.TIME_IS_UP)
        if limits.max_failures is not None and tally.num_failed > limits.max_failures:
            loop.request_stop(StopReason.TOO_MANY_FAILURES)
        loop.step(_POLL_S)


def _tidy(fs: PosixFilesystem, out: Path, loop: CollectLoop) -> None:
    """Once the last collector is done: publish what dead ones left, sweep orphans, write the card."""
    for _ in range(_TIDY_ATTEMPTS):  # `verify` and `status` hold the lock for a moment, too
        with fs.lock(RUN_LOCK, exclusive=True, wait=False) as alone:
            if alone:
                loop.finish()
                sweep(fs)
                write_card(fs, open_dataset(out))
                return
        time.sleep(_POLL_S)


def _run_start(
    out: Path, fs: PosixFilesystem, plan: Plan, device: Device, corpus: Corpus
) -> RunStart:
    statuses: dict[str, int] = {}
    num_done = 0
    manifest = latest_manifest(fs)
    if manifest is not None:
        statuses = open_dataset(out).status_counts()
        num_done = manifest.num_tasks
    return RunStart(
        plan=plan,
        device=device,
        statuses=statuses,
        num_tasks_done=num_done,
        skipped=corpus.skipped,
    )


def _event_path(out: Path, holder: Holder) -> Path:
    return out / "events" / f"{_slug(process_name(holder))}.jsonl"


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)
