"""The life of one simulated collector: the order of steps is that of ``workers/collect/collect.py``.

Owns what a process does between its start and its end. The store, the ledger and the loop are the shipped ones.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from llmperf_common.ledger.attach import attach
from llmperf_common.ledger.protocol import Holder, Ledger
from llmperf_common.records import Device, TaskResult
from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.manifests.run import RUN_FILE, RUN_LOCK, RunRecord, create_or_join_run
from llmperf_common.store.tables.shard import ShardFile, encode_device
from llmperf_common.store.upkeep.sweep import sweep
from tests.simulation import memo
from tests.simulation.disk import Disk
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.setup import LEDGER_CONFIG, Planted, Setup
from tests.simulation.work import (
    DEVICE_CLASS,
    DEVICE_ID,
    PLAN_HASH,
    SimExecutor,
    SimPlan,
    index_of,
)
from workers.collect.loop import CollectLoop
from workers.collect.loop_interfaces import EndReason
from workers.collect.observers import SilentObserver

_STEP_S = 2.0
_RUN = RunRecord(
    plan_hash=PLAN_HASH,
    corpus_sha256="0" * 64,
    config_hash="0" * 20,
    config={},
    device_classes=(DEVICE_CLASS,),
    num_tasks=0,
    created_at="2026-01-01T00:00:00+00:00",
)


class CountingObserver(SilentObserver):
    """Counts what a loop met."""

    def __init__(self, coverage: Counter[str]) -> None:
        self._coverage = coverage

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """A shard was refused."""
        del stem, stale_tasks
        self._coverage["shard refused"] += 1

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Results are durable."""
        del stem, results, epoch
        self._coverage["shard committed"] += 1

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost."""
        del tasks
        again = "lease ran out" not in why
        self._coverage["attached again" if again else "lease lost"] += 1
        if "taken over" in why:
            self._coverage["stale publisher refused"] += 1


class LateWriter(Executor):
    """Stands for the thread that writes shards: what is submitted happens when it has been asked for often enough."""

    def __init__(self, num_polls: int) -> None:
        self._num_polls = num_polls

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LateFuture:
        """Return a future that is not yet done."""
        return LateFuture(partial(fn, *args, **kwargs), num_polls=self._num_polls)


class LateFuture(Future[Any]):
    """Works when its result is needed, or the last poll has been made."""

    def __init__(self, work: Callable[[], Any], *, num_polls: int) -> None:
        super().__init__()
        self._work = work
        self._polls_left = num_polls

    def done(self) -> bool:
        """Whether it is written."""
        self._polls_left -= 1
        if self._polls_left < 0:
            self._finish()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        """Write it if need be; a crash of the process goes through."""
        self._finish()
        return super().result(timeout)

    def _finish(self) -> None:
        if super().done():
            return
        try:
            self.set_result(self._work())
        except Exception as error:  # noqa: BLE001  (whoever asks for the result gets it)
            self.set_exception(error)


def collect(
    process: Process,
    *,
    setup: Setup,
    planted: Planted,
    disk: Disk,
    scheduler: Scheduler,
    oracle: Oracle,
    new_stem: Callable[[int], str],
) -> None:
    """Live like ``workers.collect.collect.collect``, on the simulated world."""
    fs = planted.filesystem_class(disk, scheduler)
    create_or_join_run(fs, _RUN)
    fs.pin(RUN_FILE)
    with fs.lock(RUN_LOCK, exclusive=False, wait=True):
        ledger_location = planted.location_class(
            disk=disk,
            scheduler=scheduler,
            oracle=oracle,
            process=process,
            sees_deaths=setup.sees_deaths,
        )

        def attached() -> Ledger:
            ledger = attach(
                fs, ledger_location, plan_hash=PLAN_HASH, index_of=index_of, who=str(process.number)
            )
            ledger_location.has_attached = True
            return ledger

        loop = planted.loop_class(
            fs=fs,
            attach=attached,
            plan=SimPlan(num_tasks=setup.num_tasks),
            tasks=range(setup.num_tasks),
            executor=SimExecutor(
                scheduler, claim_ahead=setup.claim_ahead, durations_s=setup.durations_s
            ),
            holder=Holder(host="sim", boot_id="boot", pid=process.number, start_ticks=0),
            device_shards=[_device_of_run(fs)],
            clock_s=lambda: scheduler.now_s,
            new_stem=new_stem,
            store_config=setup.store_config,
            ledger_config=LEDGER_CONFIG,
            observer=CountingObserver(disk.coverage),
            encode=memo.encode_results,
            writer=LateWriter(setup.writing_polls),
            sleep=lambda seconds: scheduler.sleep(seconds, "the ledger is away"),
        )
        process.request_stop = lambda: loop.request_stop(EndReason.INTERRUPTED)
        while not loop.is_over:
            if process.wants_abort:
                process.wants_abort = False
                loop.abort_tasks()
            loop.step(_STEP_S)
        loop.finish()
    _tidy(fs, loop, planted, disk)
    loop.close()


def _tidy(fs: Filesystem, loop: CollectLoop, planted: Planted, disk: Disk) -> None:
    with fs.lock(RUN_LOCK, exclusive=True, wait=False) as alone:
        if alone or planted.sweeps_beside_others:
            if not loop.finish():
                return
            recorded = loop.recorded()
            if recorded is None:
                return
            report = sweep(fs, recorded=recorded)
            disk.coverage["orphan swept"] += len(report.removed)


def _device_of_run(fs: Filesystem) -> ShardEntry:
    device = _device_shard()
    fs.put_if_absent(device.name, device.data)
    return device.entry


@functools.cache
def _device_shard() -> ShardFile:
    device = Device(
        device_id=DEVICE_ID,
        device_class=DEVICE_CLASS.name,
        device_uuid="",
        name="simulated",
        platform="",
        driver="",
        compute_units=1,
        max_work_group_size=1,
        max_work_item_sizes=(1, 1, 1),
        max_clock_mhz=None,
        global_memory_bytes=1,
        max_allocation_bytes=1,
        local_memory_bytes=1,
        last_level_cache_bytes=1,
        has_fp64=False,
        has_half=False,
    )
    return encode_device(device, plan_hash=PLAN_HASH)
