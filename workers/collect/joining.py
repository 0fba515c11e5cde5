"""Join a dataset folder as a collector: its plan, ``run.json``, the device's record and the ledger.

Decides what the first collector creates and all later ones take over. ``device_worker.py`` calls
these functions in the order of a run.
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from llmperf_common.ledger.attach import ATTACH_LOCK, LedgerLocation, attach
from llmperf_common.ledger.protocol import Ledger
from llmperf_common.records import Device
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.create_once import check_creates_once
from llmperf_common.store.files.filesystem import Filesystem, StoreLostError
from llmperf_common.store.files.run_lock import naming_holders
from llmperf_common.store.manifests.epochs import EPOCHS_FOLDER
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.manifests.run import (
    RUN_FILE,
    ForeignRunError,
    RunRecord,
    create_or_join_run,
    read_run,
)
from llmperf_common.store.tables.shard import ShardError, decode, device_from_table, encode_device
from llmperf_common.store.upkeep.sweep import TRASH_FOLDER
from workers.config import CollectConfig
from workers.corpus.read import Corpus
from workers.device.device_class import device_class_of
from workers.device.nvidia.nvml import NvmlAbsent, open_gpu_of
from workers.execution.pipeline import DevicePipeline
from workers.plan.plan import Plan
from workers.plan.task_index import TaskIndex


def join_plan(
    fs: Filesystem, corpus: Corpus, config: CollectConfig, found: Sequence[Device]
) -> Plan:
    """Return the run's plan (a task for each kernel and device class); create the run if needed.

    If ``run.json`` lists all device classes of ``found``, the plan takes their facts from there,
    because the memory size that a driver reports changes between two starts, but a plan must not
    change. A device of any listed class can join the run.

    Raises:
        StoreError: The folder cannot be used, or its store lets two writers create the same name.
    """
    wanted = {device.device_class: device_class_of(device) for device in reversed(found)}
    if read_run(fs) is None:
        _refuse_foreign_folders(fs)
    check_creates_once(fs)
    while True:
        recorded = read_run(fs)
        if recorded is None:
            _refuse_foreign_folders(fs)
        classes = recorded.device_classes if recorded else ()
        is_ours = wanted.keys() <= {one.name for one in classes}
        plan = Plan(
            kernels=corpus.kernels,
            corpus_sha256=corpus.sha256,
            device_classes=classes if is_ours else tuple(wanted[name] for name in sorted(wanted)),
            plan_config=config.plan,
            timing_config=config.timing,
        )
        try:
            create_or_join_run(fs, _run_record(plan, config))
        except ForeignRunError:
            if recorded is None and read_run(fs) is not None:
                continue  # another collector has just created run.json: join its run
            raise
        return plan


def _refuse_foreign_folders(fs: Filesystem) -> None:
    """Raise ForeignRunError if the folder holds folders that are not a dataset's own."""
    own = {*TABLES, EPOCHS_FOLDER, TRASH_FOLDER, "ledger", "events"}
    foreign = [name for name in fs.folders() if name not in own and not name.startswith(".")]
    if foreign:
        raise ForeignRunError(
            f"{fs.describe()} has no run.json, but has other folders ({', '.join(foreign[:3])}): "
            "choose an empty or new folder for --out"
        )


def _run_record(plan: Plan, config: CollectConfig) -> RunRecord:
    return RunRecord(
        plan_hash=plan.plan_hash,
        corpus_sha256=plan.corpus_sha256,
        config_hash=config.content_hash(),
        config=config.model_dump(mode="json"),
        device_classes=plan.device_classes,
        num_tasks=plan.num_tasks,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=secrets.token_hex(10),
    )


def pin_run(fs: Filesystem, plan: Plan) -> RunRecord:
    """Check that the folder belongs to ``plan``; from now on, a lost folder is not made again."""
    fs.pin(RUN_FILE)
    run = read_run(fs)
    if run is None or run.plan_hash != plan.plan_hash:
        raise StoreLostError(
            f"{fs.describe(RUN_FILE)} now belongs to another run, which started at the same "
            "time: run the same command again"
        )
    return run


def device_of_run(
    fs: Filesystem, found: Device, plan: Plan, pipeline: DevicePipeline
) -> tuple[Device, ShardEntry]:
    """Return the device as the dataset records it; the first collector measures its peaks."""
    name = f"devices/{found.device_id}.parquet"
    try:
        data = fs.read_bytes(name)
    except FileNotFoundError:
        measured = with_limits(pipeline.open_device(measure_peaks=True))
        fs.put_if_absent(name, encode_device(measured, plan_hash=plan.plan_hash).data)
        data = fs.read_bytes(name)  # the record of the first collector counts, also for others
    table, footer = decode(data, name)
    if footer.plan_hash != plan.plan_hash:
        raise ShardError(
            f"{fs.describe(name)} belongs to another plan: choose an empty or new folder for --out"
        )
    device = device_from_table(table)
    return device, ShardEntry.of(name, data, rows=1, tasks=0)


def with_limits(device: Device) -> Device:
    """Return the device with the fields that come from NVML; unchanged if NVML lacks the device."""
    gpu = open_gpu_of(device)
    if gpu is None or isinstance(gpu, NvmlAbsent):
        return device
    with gpu:
        return dataclasses.replace(device, power_limit_w=gpu.limits().power_limit_w)


def attach_ledger(
    fs: Filesystem, ledger_location: LedgerLocation, plan: Plan, *, who: str
) -> Ledger:
    """Return the dataset's ledger, rebuilt from the shards if necessary."""
    # The index of a large plan is large, so it is not kept after this call.
    index = TaskIndex(plan)
    with naming_holders(fs, ATTACH_LOCK):
        return attach(
            fs, ledger_location, plan_hash=plan.plan_hash, index_of=index.index_of, who=who
        )


def ledger_opener(
    fs: Filesystem, ledger_location: LedgerLocation, plan: Plan, *, who: str
) -> Callable[[], Ledger]:
    """Return a function that attaches the ledger. Before it attaches again, it checks the store.

    The check shows that the store still accepts writes. If it does not, a ledger can be opened but
    is lost at the first claim. Without the check, the collector would then attach for ever.
    """
    starts = itertools.count()

    def attach_now() -> Ledger:
        if next(starts):
            fs.check_place()
            check_creates_once(fs)
        return attach_ledger(fs, ledger_location, plan, who=who)

    return attach_now
