"""``collect`` on one machine: one worker with one device, from a new folder or resuming a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from llmperf_common.ledger.attach import LedgerLocation
from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.manifests.run import RunRecord, read_run
from workers.collect.device_worker import Control, DeviceWorker, RunStart
from workers.collect.joining import join_plan
from workers.collect.loop_interfaces import LoopObserver
from workers.collect.summary import CollectSummary, summarise
from workers.config import CollectConfig
from workers.corpus.read import Corpus
from workers.device.interface import DeviceRef


def collect(
    *,
    corpus: Corpus,
    fs: Filesystem,
    events: Path,
    kept: Path,
    ref: DeviceRef,
    config: CollectConfig,
    control: Control,
    observe: Callable[[RunStart], LoopObserver],
    ledger_location_of: Callable[[RunRecord], LedgerLocation],
) -> CollectSummary:
    """Collect ``corpus`` on one device; resume if an earlier run stopped.

    Args:
        corpus: the kernels.
        fs: dataset folder: new, empty, or of the same plan.
        events: folder of the event log.
        kept: folder on this host for finished tasks, used if the dataset's folder is lost.
        ref: the device.
        config: the whole config tree.
        control: passes Ctrl-C on.
        observe: makes the observer of progress.
        ledger_location_of: returns where the ledgers of a run are kept.

    Raises:
        StoreError: The folder cannot be used (``ForeignRunError``: it belongs to another run).
        DeviceLostError: The device cannot be opened.
        GpuTakenError: Another process uses the device.
    """
    started_s = time.monotonic()
    with DeviceWorker(ref, config, where=fs.describe()) as worker:
        found = worker.open()
        plan = join_plan(fs, corpus, config, [found])
        run = read_run(fs)
        assert run is not None, "it was joined"
        reason, device = worker.collect(
            fs=fs,
            plan=plan,
            ledger_location=ledger_location_of(run),
            events=events,
            kept=kept,
            control=control,
            observe=observe,
            skipped=corpus.skipped,
        )
        return summarise(
            fs,
            plan,
            [device],
            reason,
            seconds=time.monotonic() - started_s,
            num_dropped=worker.num_dropped,
        )
