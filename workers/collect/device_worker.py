"""Open and claim one device of this host, then collect the tasks of a run with it.

Owns the resources of a worker process (scratch folder, claim of the GPU, children) and the order of
its steps: device record, ledger, loop, sweep of orphans, dataset card. The command line or a
cluster's actor drives the worker.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmperf_common.installation import InstallationChanged
from llmperf_common.ledger.attach import LedgerLocation, process_name
from llmperf_common.ledger.holder import boot_clock_s, this_process
from llmperf_common.ledger.protocol import Holder
from llmperf_common.records import Device
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.run_lock import beside_others
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest
from llmperf_common.store.manifests.run import RUN_LOCK
from llmperf_common.store.tables.card import update_card
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.sweep import sweep
from workers.collect.built_before import a_built_task
from workers.collect.event_logging import EventLogHandler, logging_taken
from workers.collect.events import open_event_log
from workers.collect.heartbeat import HeartbeatWriter
from workers.collect.joining import device_of_run, ledger_opener, pin_run
from workers.collect.kept import KeptPairs, keeping
from workers.collect.loop import CollectLoop
from workers.collect.loop_interfaces import EndReason, LoopObserver
from workers.collect.observers import Fanout, Tally
from workers.collect.self_report import SelfReport, WorkerState
from workers.config import CollectConfig
from workers.device.interface import DeviceRef
from workers.device.nvidia.nvml import open_monitor
from workers.discovery.ownership import GpuClaim, needs_owner
from workers.execution.doubtful_builds import NothingCompilesError
from workers.execution.pipeline import DevicePipeline
from workers.measure.launch_processor import LaunchProcessor
from workers.plan.plan import Plan
from workers.plan.task_index import TaskIndex
from workers.sandbox.own_stack import OwnStack
from workers.sandbox.run_children import DeviceLostError
from workers.sandbox.scratch import scratch_folder

_logger = logging.getLogger(__name__)

_POLL_S = 0.2
_TIDY_ATTEMPTS = 5


class Control:
    """The means by which the command line or an actor stops a running collection."""

    def __init__(self) -> None:
        self.num_interrupts = 0
        self.is_collecting = False
        """Whether the loop runs. While it runs, an interrupt lets it finish the task in hand."""
        self.drained = ""
        """Why the run gives its device up and stops; "" if it goes on."""

    def interrupt(self) -> None:
        """Stop the run: the first call lets the task in hand finish, the second call drops it."""
        self.num_interrupts += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What is known when the loop is about to begin; ``observe`` makes the observer from this."""

    plan: Plan
    device: Device
    statuses: dict[str, int]
    """Rows by status from earlier starts of this run."""
    num_tasks_done: int
    skipped: tuple[tuple[str, str], ...]
    """Files of the corpus without any kernel, and why."""


class DeviceWorker:
    """Opens a device, claims it and collects with it; a context manager.

    Args:
        ref: the device.
        config: the whole config tree.
        where: the dataset's name in messages to other processes that want the device.
        logs: the handler that receives log records, if the caller has set one up already.
    """

    def __init__(
        self,
        ref: DeviceRef,
        config: CollectConfig,
        *,
        where: str,
        logs: EventLogHandler | None = None,
    ) -> None:
        self._ref = ref
        self._config = config
        self._holder = this_process()
        self._started_s = time.monotonic()
        self._stack = OwnStack()
        self._logs = logs or self._stack.enter_context(logging_taken())
        scratch = self._stack.enter_context(scratch_folder(self._holder))
        self._claim = self._stack.enter_context(
            GpuClaim(ref, out=where, allow_busy=config.limits.allow_busy_gpu)
        )
        self._launches = LaunchProcessor()
        self._stack.callback(self._launches.give_up)
        self._pipeline = DevicePipeline(
            ref=ref,
            config=config,
            scratch=scratch,
            worker_id=self.worker_id,
            quiet=not ref.selector.startswith(("cuda", "replay")),
            launches=self._launches,
        )
        self._stack.callback(self._pipeline.close)
        self._found: Device | None = None
        self.num_dropped = 0
        """Number of tasks that had finished when the ledger was lost, and are not committed."""

    @property
    def worker_id(self) -> str:
        """The worker's name ``host/pid``, as in the rows of the dataset."""
        return process_name(self._holder)

    def open(self) -> Device:
        """Open the device and claim it.

        Raises:
            DeviceLostError: The device cannot be opened.
            GpuTakenError: Another process uses the device.
        """
        found = self._pipeline.open_device(measure_peaks=False)
        _logger.debug("opened %s", found)
        self._claim.take(found)
        if self._config.timing.one_processor and needs_owner(found, self._ref):
            self._launches.take()
        self._pipeline.get_ready()
        self._found = found
        return found

    def warm_up(self) -> None:
        """Start the children that the first tasks need, while there is no task yet."""
        self._pipeline.warm_up()

    def collect(
        self,
        *,
        fs: Filesystem,
        plan: Plan,
        ledger_location: LedgerLocation,
        events: Path,
        kept: Path,
        control: Control,
        observe: Callable[[RunStart], LoopObserver],
        skipped: tuple[tuple[str, str], ...] = (),
        context: Mapping[str, str] | None = None,
        heard: Callable[[Mapping[str, Any]], None] = lambda _document: None,
        counts_rows: bool = True,
    ) -> tuple[EndReason, Device]:
        """Collect tasks of the device's class until none is left or there is a reason to stop.

        Args:
            fs: the dataset, joined (``joining.join_plan``).
            plan: the run's plan.
            ledger_location: where the run's ledgers are kept.
            events: folder of the event log.
            kept: folder on this host for finished tasks, used if the dataset's folder is lost.
            control: passes Ctrl-C on.
            observe: makes the observer of progress.
            skipped: files of the corpus without any kernel, each with the reason.
            context: further fields of every event and every heartbeat.
            heard: receives the report of each heartbeat.
            counts_rows: whether to count the rows at the start, for ``RunStart.statuses`` and
                ``limits.max_failures``.

        Returns:
            Why the collection ended, and the device as the dataset records it.

        Raises:
            StoreError: The dataset cannot be used.
            StoreLostError: The dataset's folder is lost; finished tasks are kept on this host.
            DeviceLostError: The device failed; everything finished is committed.
            NothingCompilesError: No kernel can be built here.
        """
        assert self._found is not None, "open() comes first"
        run = pin_run(fs, plan)
        with OwnStack() as stack:
            with beside_others(fs):
                device, device_entry = device_of_run(fs, self._found, plan, self._pipeline)
                start = _run_start(fs, plan, device, skipped, counts_rows=counts_rows)
                tally = Tally(start.statuses)
                log = open_event_log(events, self.worker_id, context)
                stack.callback(log.close)
                monitor = open_monitor(device, poll_hz=self._config.timing.poll_hz)
                if monitor is not None:
                    stack.enter_context(monitor)
                told = SelfReport(
                    worker_id=self.worker_id,
                    device=device,
                    context=context or {},
                    read=monitor.latest if monitor is not None else lambda: None,
                )
                stack.enter_context(
                    self._logs.writing_to(
                        log, tasks_in_hand=lambda: told.tasks_in_hand, told=told.note_error
                    )
                )
                self._pipeline.use(plan, device, note=log.note, monitor=monitor)
                own = kept / (run.run_id or plan.plan_hash) / device.device_id
                pairs = KeptPairs(own, plan_hash=plan.plan_hash)
                # Before the ledger opens, because a rebuilt ledger may adopt the pairs.
                put_back = pairs.put_back(fs)
                loop = _make_loop(
                    fs=fs,
                    ledger_location=ledger_location,
                    plan=plan,
                    pipeline=self._pipeline,
                    holder=self._holder,
                    device=device,
                    device_entry=device_entry,
                    config=self._config,
                    observer=Fanout((log, tally, told, observe(start))),
                    heartbeat=HeartbeatWriter(
                        told, worker_id=self.worker_id, clock_s=time.monotonic, heard=heard
                    ),
                    writer=stack.enter_context(ThreadPoolExecutor(1, "shard-writer")),
                )
                stack.callback(loop.close)
                if put_back:
                    pairs.commit(loop, put_back, TaskIndex(plan))
                with _telling_the_end(told, control, loop), keeping(loop, pairs):
                    try:
                        _drive(loop, control, self._config, tally, self._started_s)
                    except (DeviceLostError, InstallationChanged, NothingCompilesError):
                        loop.finish()  # commit what has finished
                        raise
                    loop.finish()
            self.num_dropped = loop.losses.num_dropped
            _tidy(fs, loop, len(plan.tasks_of_class(device.device_class)))
            return loop.end_reason, device

    def close(self) -> None:
        """End every child and release the device."""
        self._stack.close()

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_loop(
    *,
    fs: Filesystem,
    ledger_location: LedgerLocation,
    plan: Plan,
    pipeline: DevicePipeline,
    holder: Holder,
    device: Device,
    device_entry: ShardEntry,
    config: CollectConfig,
    observer: LoopObserver,
    writer: Executor,
    heartbeat: HeartbeatWriter,
) -> CollectLoop:
    who = process_name(holder)
    return CollectLoop(
        fs=fs,
        attach=ledger_opener(fs, ledger_location, plan, who=who),
        plan=plan,
        tasks=plan.tasks_of_class(device.device_class),
        executor=pipeline,
        holder=holder,
        device_shards=[device_entry],
        clock_s=boot_clock_s,  # as in the ledger: leases also expire while the host is suspended
        new_stem=lambda epoch: f"e{epoch:06d}-{_slug(who)}-{secrets.token_hex(6)}",
        store_config=config.store,
        ledger_config=config.ledger,
        observer=observer,
        writer=writer,
        heartbeat=heartbeat,
        builds_again=lambda: _builds_again(fs, plan, pipeline, device.device_class),
    )


def _builds_again(fs: Filesystem, plan: Plan, pipeline: DevicePipeline, device_class: str) -> bool:
    task = a_built_task(fs, plan, device_class)
    return task is not None and pipeline.can_build(task)


@contextlib.contextmanager
def _telling_the_end(told: SelfReport, control: Control, loop: CollectLoop) -> Iterator[None]:
    """Put the reason why the run ended into its last heartbeat."""
    try:
        yield
    except BaseException as error:
        told.ends(WorkerState.FAILED, str(error) or type(error).__name__)
        raise
    if control.drained:
        told.ends(WorkerState.DRAINED, control.drained)
    else:
        told.ends(WorkerState.ENDED, loop.end_reason.value)


def _drive(
    loop: CollectLoop, control: Control, config: CollectConfig, tally: Tally, started_s: float
) -> None:
    """Run the loop until it is over; ask it to stop after an interrupt or at a limit."""
    limits = config.limits
    aborted = False
    control.is_collecting = True
    while not loop.is_over:
        if control.num_interrupts:
            loop.request_stop(EndReason.INTERRUPTED)
        if control.num_interrupts > 1 and not aborted:
            loop.abort_tasks()
            aborted = True
        if limits.max_time_s is not None and time.monotonic() - started_s > limits.max_time_s:
            loop.request_stop(EndReason.TIME_IS_UP)
        if limits.max_failures is not None and tally.num_failed > limits.max_failures:
            loop.request_stop(EndReason.TOO_MANY_FAILURES)
        loop.step(_POLL_S)


def _tidy(fs: Filesystem, loop: CollectLoop, num_tasks: int) -> None:
    """Update the dataset card; the last collector also publishes all shards and sweeps orphans.

    Raises:
        StoreError: The ledger counts all ``num_tasks`` tasks of the device class as finished, but
            the folder does not hold them.
    """
    for _ in range(_TIDY_ATTEMPTS):  # `verify` and `status` also hold the lock for a moment
        with fs.lock(RUN_LOCK, exclusive=True, wait=False) as alone:
            if alone:
                # The lock may not exclude collectors of other hosts. So nothing is swept while any
                # lease is held.
                is_published = loop.finish() and loop.num_leased() == 0
                if is_published:
                    recorded = loop.recorded()
                    if recorded is not None:
                        sweep(fs, recorded=recorded)
                update_card(fs)
                if is_published and loop.end_reason is EndReason.COMPLETE:
                    _check_complete(fs, num_tasks)
                return
        time.sleep(_POLL_S)


def _check_complete(fs: Filesystem, num_tasks: int) -> None:
    manifest = latest_manifest(fs)
    num_found = manifest.num_tasks if manifest is not None else 0
    if num_found < num_tasks:
        raise StoreError(
            f"{fs.describe()} holds {num_found:,} tasks, but its ledger has counted all "
            f"{num_tasks:,} as finished: committed files have vanished, or collectors of another "
            "folder, such as a copy of this one, use the same ledger (then give each folder a "
            "ledger of its own, such as another Redis database). The results in this folder are "
            "valid: run the same command again"
        )


def _run_start(
    fs: Filesystem,
    plan: Plan,
    device: Device,
    skipped: tuple[tuple[str, str], ...],
    *,
    counts_rows: bool,
) -> RunStart:
    statuses: dict[str, int] = {}
    num_done = 0
    manifest = latest_manifest(fs)
    if manifest is not None:
        statuses = open_dataset(fs).status_counts() if counts_rows else {}
        num_done = manifest.num_tasks
    return RunStart(
        plan=plan, device=device, statuses=statuses, num_tasks_done=num_done, skipped=skipped
    )


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)
