"""The actor: one process with one device on one slot; it runs the loop of ``llmperf collect``.

Owns the working thread and the reports to the pool. The actor's methods answer at once. So if no
answer comes, the process or the node is gone. The only facts from Ray that the actor gets are its
GPU ids; ``ray/runtime.py`` starts it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence

from cluster.ledger.locations import kept_beside, ledger_locations
from cluster.ledger.timed_ledger import TimedLocation
from cluster.pool.health import DrainRule, drains_for_drift
from cluster.pool.reports import ActorReport, ActorSpec, ActorState, DrainCause, FailureKind
from cluster.ray.pinning import NoSlotDevice, device_of_slot
from cluster.telemetry.metrics import Meter, MetricsObserver, SilentMeter
from llmperf_common.extras import MissingExtra
from llmperf_common.installation import InstallationChanged, loaded_installation
from llmperf_common.ledger.attach import process_name
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import Lease, LedgerAwayError
from llmperf_common.masking import masked
from llmperf_common.records import Device, TaskResult
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.manifests.run import read_run
from workers.collect.device_worker import Control, DeviceWorker
from workers.collect.event_logging import EventLogHandler, logging_taken
from workers.collect.events import open_event_log
from workers.collect.joining import join_plan
from workers.collect.loop_interfaces import EndReason
from workers.collect.observers import Fanout, SilentObserver, statuses_of
from workers.corpus.read import Corpus
from workers.device.interface import DeviceRef
from workers.device.nvidia.gpu_lock import GpuTakenError
from workers.device.nvidia.nvml import NvmlAbsent, open_gpu_of
from workers.device.nvidia.nvml_gpu import NvmlGpu
from workers.execution.doubtful_builds import NothingCompilesError
from workers.plan.plan import Task
from workers.sandbox.processors import share_of
from workers.sandbox.run_children import DeviceLostError

_logger = logging.getLogger(__name__)


class ForeignFolderError(StoreError):
    """The dataset's name leads to another folder on this node."""


_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (GpuTakenError, FailureKind.TAKEN),
    (DeviceLostError, FailureKind.DEVICE),
    (NothingCompilesError, FailureKind.NO_BUILD),
    (ForeignFolderError, FailureKind.FOREIGN),
    (InstallationChanged, FailureKind.CHANGED),
    (StoreError, FailureKind.STORE),
    (LedgerAwayError, FailureKind.STORE),
    (MissingExtra, FailureKind.DEVICE),
)


class CollectActor:
    """Collects with one device, in a thread that starts with the object.

    Args:
        spec: how and where to collect.
        gpu_ids: the GPU ids that Ray assigned to this process.
        context: ids of the actor and its node, for the event log.
        meter: receives the actor's metrics; None exports no metrics.
    """

    def __init__(
        self,
        spec: ActorSpec,
        gpu_ids: Sequence[str],
        context: Mapping[str, str],
        meter: Meter | None = None,
    ) -> None:
        self._spec = spec
        self._gpu_ids = tuple(gpu_ids)
        self._context = dict(context)
        self._meter = meter or SilentMeter()
        self._control = Control()
        self._counts = _Counts()
        self._run: tuple[Corpus, str] | None = None
        self._may_go_on = threading.Event()
        self._report = ActorReport(state=ActorState.STARTING)
        self._gpu: NvmlGpu | None = None
        self._began_s: float | None = None
        self._drained = ""
        self._drain_cause: DrainCause | None = None
        self._rule: DrainRule | None = None
        self._thread = threading.Thread(target=self._work, name="collector", daemon=True)
        self._thread.start()

    def report(self) -> ActorReport:
        """Return the actor's current state, counts and GPU readings, without waiting for its work.

        A collector thread that ended without a final state is reported as an internal failure.
        """
        # Ask the thread first, because it may send its last report and end meanwhile.
        is_at_work = self._thread.is_alive()
        told, now_s = self._report, time.monotonic()
        if not is_at_work and not told.is_final:
            why = "its collector thread ended without a report"
            return ActorReport(state=ActorState.FAILED, kind=FailureKind.INTERNAL, detail=why)
        reading = self._gpu.read(now_s) if self._gpu and not told.is_final else None
        return ActorReport(
            state=told.state,
            detail=told.detail,
            kind=told.kind,
            worker_id=told.worker_id,
            device=told.device,
            reason=told.reason,
            drained=self._drained,
            drain_cause=self._drain_cause,
            sentinel_baseline_ns=self._rule.baseline_ns if self._rule else None,
            is_steady=self._rule is not None and self._rule.is_steady,
            statuses=dict(self._counts.statuses),
            num_tasks_done=self._counts.num_tasks_done,
            num_tasks_in_hand=0 if told.is_final else self._counts.num_in_hand,
            collecting_s=now_s - self._began_s if self._began_s else 0.0,
            temperature_c=reading.temperature_c if reading else None,
            busy_share=reading.busy_share if reading else None,
        )

    def begin(self, corpus: Corpus, run_id: str) -> None:
        """Collect the run of this id, which the driver has created in the dataset folder."""
        self._run = (corpus, run_id)
        self._may_go_on.set()

    def stop(self, *, drop: bool) -> None:
        """Finish the tasks on the device and end; with ``drop``, end without finishing them."""
        self._control.num_interrupts = max(self._control.num_interrupts, 2 if drop else 1)
        self._may_go_on.set()

    def _work(self) -> None:
        with logging_taken() as logs:
            try:
                self._open_and_collect(logs)
            except Exception as error:  # the only place that catches every error of this process
                kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), None)
                if kind is None:
                    _logger.exception("the collector failed")
                else:
                    _logger.error("the collector ends: %s", error)
                text = masked(traceback.format_exc() if kind is None else str(error))
                with contextlib.suppress(OSError):  # the error may come from the disk of the log
                    # Before the final report, because this process may be killed after it.
                    self._keep(logs)
                self._tell(ActorState.FAILED, text, kind or FailureKind.INTERNAL)

    def _keep(self, logs: EventLogHandler) -> None:
        """Write log lines from before the event log was open, if there is a dataset to write to."""
        events = kept_beside(self._spec.location, self._spec.state_folder) / "events"
        if not logs.has_waiting or not events.is_dir():
            return
        name = self._report.worker_id or process_name(this_process())
        log = open_event_log(events, name, self._context)
        with logs.writing_to(log):
            pass
        log.close()

    def _open_and_collect(self, logs: EventLogHandler) -> None:
        spec = self._spec
        loaded_installation().require(spec.files_sha256, "the process that started the run")
        ref = device_of_slot(spec.slot.device, self._gpu_ids)
        if isinstance(ref, NoSlotDevice):
            raise DeviceLostError(ref.reason)
        if ref.selector.startswith("cuda"):
            use_share_of_processors(spec.slot.index, spec.slot.num_on_node)
        with DeviceWorker(ref, spec.config, where=spec.location, logs=logs) as worker:
            device = worker.open()
            self._tell(ActorState.OPEN, device=device, worker_id=worker.worker_id)
            worker.warm_up()
            self._may_go_on.wait()
            reason = EndReason.INTERRUPTED
            if self._control.num_interrupts == 0 and self._run is not None:
                gpu = open_gpu_of(device)
                self._gpu = None if isinstance(gpu, NvmlAbsent) else gpu
                reason, device = self._collect(worker, ref, device, *self._run)
        # Report the end after children and scratch folder are gone, because the process may be
        # killed after this report.
        self._tell(ActorState.ENDED, device=device, reason=reason)

    def _collect(
        self, worker: DeviceWorker, ref: DeviceRef, found: Device, corpus: Corpus, run_id: str
    ) -> tuple[EndReason, Device]:
        spec = self._spec
        fs = open_filesystem(spec.location)
        run = read_run(fs)
        if run is None or run.run_id != run_id:
            raise ForeignFolderError(
                f"{fs.describe()} on node {spec.slot.host} is not the folder that the driver sees: "
                "give --out a folder that all nodes share"
            )
        plan = join_plan(fs, corpus, spec.config, [found])
        self._began_s = time.monotonic()
        self._tell(ActorState.COLLECTING)
        rule = self._rule = DrainRule(
            spec.config.cluster,
            self._drain,
            baseline_ns=spec.sentinel_baseline_ns,
            drains_for_drift=drains_for_drift(ref),
        )
        metrics = MetricsObserver(
            self._meter,
            {
                "seat": spec.slot.name,
                "node": self._context.get("node_id", ""),
                "device_class": found.device_class,
            },
        )
        ledger_location = ledger_locations(spec.ledger, spec.location, spec.state_folder)(run)
        return worker.collect(
            fs=fs,
            plan=plan,
            ledger_location=TimedLocation(ledger_location, metrics.ledger_called),
            events=kept_beside(spec.location, spec.state_folder) / "events",
            kept=spec.state_folder / "kept",
            control=self._control,
            observe=lambda _start: Fanout((self._counts, rule, metrics)),
            context=self._context,
            heard=metrics.heard,
            counts_rows=False,
        )

    def _drain(self, cause: DrainCause, reason: str) -> None:
        _logger.warning("drained: %s", reason)  # this also goes into the event log
        self._drain_cause = cause
        self._drained = self._control.drained = reason
        self.stop(drop=False)

    def _tell(
        self,
        state: ActorState,
        detail: str = "",
        kind: FailureKind | None = None,
        *,
        device: Device | None = None,
        worker_id: str = "",
        reason: EndReason | None = None,
    ) -> None:
        before = self._report
        self._report = ActorReport(
            state=state,
            detail=detail,
            kind=kind,
            device=device or before.device,
            worker_id=worker_id or before.worker_id,
            reason=reason,
        )


class _Counts(SilentObserver):
    """Counts the tasks and rows of one actor."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.num_tasks_done = 0
        self.num_in_hand = 0

    def claimed(self, task: Task, lease: Lease) -> None:
        """Count a leased task."""
        del task, lease
        self.num_in_hand += 1

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """Count a task that has its result."""
        del lease, result
        self.num_in_hand = max(0, self.num_in_hand - 1)

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Count durable rows."""
        del stem, epoch
        self.statuses += statuses_of(results)
        self.num_tasks_done += len(results)

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Count lost leases."""
        del why
        self.num_in_hand = max(0, self.num_in_hand - len(tasks))


def use_share_of_processors(index: int, num_shares: int) -> None:
    """Bind this thread and its children to one of ``num_shares`` equal shares of the processors."""
    if num_shares > 1:
        os.sched_setaffinity(0, share_of(os.sched_getaffinity(0), index, num_shares))
