"""The driver of ``collect --cluster``, which finds the devices, makes the plan and watches actors.

Owns the order of steps in a run over many nodes; no data passes through the driver. If the driver
dies, its actors end, too. The same command, started again, attaches to the dataset and its ledger
and resumes the run.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cluster.config import ClusterCollectConfig
from cluster.ledger.locations import SQLITE
from cluster.pool.pool import ActorPool
from cluster.pool.reports import ActorSpec, FailureKind
from cluster.pool.runtime import Runtime
from cluster.pool.slot_records import SlotState
from cluster.pool.slots import ActorSlot
from llmperf_common.awake_clock import awake_s
from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.failures import OK_STATUS
from llmperf_common.installation import loaded_installation
from llmperf_common.records import Device
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.manifests.run import read_run
from workers.collect.device_worker import Control
from workers.collect.joining import join_plan
from workers.collect.loop_interfaces import EndReason
from workers.collect.summary import CollectSummary, summarise
from workers.corpus.read import Corpus
from workers.execution.doubtful_builds import NothingCompilesError
from workers.plan.plan import Plan
from workers.sandbox.run_children import DeviceLostError

_POLL_S = 0.25


class ManyHostsError(LlmperfError, ValueError):
    """A ledger in a file cannot serve several hosts."""

    exit_code = Exit.USAGE


class NoSlotsError(DeviceLostError):
    """No node of the cluster can collect."""


class ClusterObserver(Protocol):
    """Receives the progress of a run over many nodes, and does not influence the run."""

    def say(self, text: str) -> None:
        """Show ``text`` to the operator."""
        ...

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """Called once, when the plan is made and before the actors collect.

        Args:
            plan: all tasks of the run.
            devices: the usable devices of the cluster.
            num_tasks_done: tasks that earlier starts of this run have committed.
        """
        ...

    def stands(self, pool: ActorPool) -> None:
        """Called several times a second with the current state of all actors."""
        ...


def collect_on_cluster(
    *,
    corpus: Corpus,
    fs: Filesystem,
    location: str,
    runtime: Runtime,
    config: ClusterCollectConfig,
    device: str,
    ledger: str,
    state_folder: Path,
    control: Control,
    observer: ClusterObserver,
) -> CollectSummary:
    """Collect ``corpus`` on every GPU of a cluster; resume if an earlier run stopped.

    Args:
        corpus: the kernels.
        fs: the dataset folder, as the driver sees it.
        location: the dataset's name, the same on all nodes.
        runtime: the cluster.
        config: the whole config tree.
        device: value of ``--device``, for pools that name no device.
        ledger: ``sqlite`` or the URL of a Redis server.
        state_folder: folder for files that must not lie on a network file system.
        control: tells the run to stop, for example on Ctrl-C.
        observer: receives the run's progress.

    Raises:
        ManyHostsError: ``ledger`` is a file, and the cluster has several hosts.
        NoSlotsError: No node has the labels of a pool, or no device can be used.
        NothingCompilesError: No kernel can be built on any node; no failure was recorded.
        StoreError: The dataset cannot be used.
    """
    started_s = time.monotonic()
    installation = loaded_installation()
    limits = config.limits
    # The limits on time and failures hold for the whole run. An actor knows only its own rows, so
    # the driver checks these limits.
    theirs = config.model_copy(
        update={"limits": limits.model_copy(update={"max_time_s": None, "max_failures": None})}
    )

    def spec_of(slot: ActorSlot) -> ActorSpec:
        return ActorSpec(
            slot=slot,
            location=location,
            ledger=ledger,
            state_folder=state_folder,
            config=theirs,
            files_sha256=installation.sha256,
        )

    hosts: set[str] = set()

    def refused(slot: ActorSlot) -> str | None:
        if ledger != SQLITE or not hosts or slot.host in hosts:
            return None
        return (
            "it is on another host, but --ledger sqlite serves one host only: use "
            "--ledger redis://HOST:PORT"
        )

    pool = ActorPool(
        runtime,
        config.cluster,
        spec_of=spec_of,
        device=device,
        say=observer.say,
        store_patience_s=config.ledger.away_limit_s,
        refused=refused,
    )
    try:
        devices = _opened(pool, config, ledger, control, observer.say)
        hosts |= {slot.host for slot in pool.slots}
        plan = join_plan(fs, corpus, config, _wanted(devices, config))
        run = read_run(fs)
        assert run is not None, "it was joined"
        manifest = latest_manifest(fs)
        observer.began(plan, devices, manifest.num_tasks if manifest else 0)
        absent = _absent_classes(plan, pool)
        if absent:
            observer.say(f"no node has device class {', '.join(absent)}: its tasks stay pending")
        _tell_shared(pool, observer.say)
        pool.begin(corpus, run.run_id, [one.name for one in plan.device_classes])
        reason = _watch(pool, config, control, observer, started_s)
    finally:
        pool.close()
    devices = tuple(pool.devices.values())
    if latest_manifest(fs) is None:
        if reason is EndReason.INTERRUPTED:
            raise KeyboardInterrupt  # no result is published, so there is nothing to summarise
        raise _unfinished(pool, plan, None)
    summary = summarise(fs, plan, devices, reason, seconds=time.monotonic() - started_s)
    if reason is EndReason.COMPLETE and summary.num_tasks_done < summary.num_tasks:
        raise _unfinished(pool, plan, summary)
    return summary


def _opened(
    pool: ActorPool,
    config: ClusterCollectConfig,
    ledger: str,
    control: Control,
    say: Callable[[str], None],
) -> tuple[Device, ...]:
    """Wait until the actors have opened their devices, or the time is up; return these devices."""
    deadline_s = awake_s() + config.cluster.start_timeout_s
    has_told = False
    while True:
        pool.step(awake_s())
        found = {one.device_class for one in pool.devices.values()}
        missing = sorted(set(config.cluster.device_classes or ()) - found)
        if found and missing and not has_told:
            has_told = True
            say(
                f"waiting for device class {', '.join(missing)} (found: {', '.join(sorted(found))})"
            )
        _refuse_many_hosts(pool, ledger)
        if control.num_interrupts:
            raise KeyboardInterrupt
        is_late = awake_s() > deadline_s
        if pool.is_settled or is_late:
            devices = tuple(pool.devices.values())
            usable = [record for record in pool.slots.values() if record.is_active]
            if devices and usable:
                return devices
            if is_late or (pool.is_settled and not usable):
                raise NoSlotsError(_why_none(pool))
        time.sleep(_POLL_S)


def _refuse_many_hosts(pool: ActorPool, ledger: str) -> None:
    hosts = sorted({slot.host for slot in pool.slots} | {socket.gethostname()})
    if ledger == SQLITE and len(hosts) > 1:
        raise ManyHostsError(
            f"--ledger sqlite is a file and serves one host, but this cluster has {len(hosts)} "
            f"hosts ({', '.join(hosts[:5])}): start a Redis server and use "
            "--ledger redis://HOST:PORT"
        )


def _wanted(devices: tuple[Device, ...], config: ClusterCollectConfig) -> tuple[Device, ...]:
    """Return the devices whose classes the plan covers."""
    classes = config.cluster.device_classes
    found = {one.device_class for one in devices}
    missing = sorted(set(classes or ()) - found)
    if missing:
        raise NoSlotsError(
            f"cluster.device_classes asks for {', '.join(missing)}, but the cluster has "
            f"{', '.join(sorted(found))}: start such a node, or leave this class out"
        )
    return tuple(one for one in devices if classes is None or one.device_class in classes)


def _absent_classes(plan: Plan, pool: ActorPool) -> list[str]:
    here = {one.device_class for one in pool.devices.values()}
    return [one.name for one in plan.device_classes if one.name not in here]


def _tell_shared(pool: ActorPool, say: Callable[[str], None]) -> None:
    """Report devices that several actors use, such as a CPU device in place of several Ray GPUs."""
    used = Counter(
        (slot.node_id, device.device_uuid, device.name) for slot, device in pool.devices.items()
    )
    for (_, _, name), num in used.items():
        if num > 1:
            say(f"{num} actors measure on one {name} at once, so they disturb each other's times")


def _watch(
    pool: ActorPool,
    config: ClusterCollectConfig,
    control: Control,
    observer: ClusterObserver,
    started_s: float,
) -> EndReason:
    """Step the pool until no actor runs or will start; return why the run ended."""
    reason: EndReason | None = None
    dropped = False
    control.is_collecting = True
    limits = config.limits
    while not pool.is_over:
        pool.step(awake_s())
        observer.stands(pool)
        wanted = None
        if control.num_interrupts:
            wanted = EndReason.INTERRUPTED
        elif limits.max_time_s is not None and time.monotonic() - started_s > limits.max_time_s:
            wanted = EndReason.TIME_IS_UP
        elif limits.max_failures is not None and _num_failed(pool) > limits.max_failures:
            wanted = EndReason.TOO_MANY_FAILURES
        if wanted is not None and reason is None:
            reason = wanted
            pool.stop(drop=False)
        if control.num_interrupts > 1 and not dropped:
            dropped = True
            pool.stop(drop=True)
        time.sleep(_POLL_S)
    observer.stands(pool)
    return reason or EndReason.COMPLETE


def _num_failed(pool: ActorPool) -> int:
    return sum(count for status, count in pool.statuses.items() if status != OK_STATUS)


def _why_none(pool: ActorPool) -> str:
    lines = [
        f"  {record.slot.name}: {record.why or 'no answer yet'}" for record in pool.slots.values()
    ]
    lines += [f"  {text}" for text in pool.missing_labels]
    return "\n".join(["no node of the cluster can collect", *(lines or ["  there is no node"])])


def _unfinished(pool: ActorPool, plan: Plan, summary: CollectSummary | None) -> Exception:
    """Return the error for a run that has tasks left but no actor to take them."""
    num_done = summary.num_tasks_done if summary else 0
    records = [p for p in pool.slots.values() if p.state in (SlotState.DRAINED, SlotState.GONE)]
    lines = [f"  {record.slot.name}: {record.state.value}: {record.why}" for record in records]
    lines += [f"  {text}" for text in pool.missing_labels]
    lines += [f"  no node has device class {name}" for name in _absent_classes(plan, pool)]
    if summary is not None:
        lines.append(
            f"  planned {summary.num_planned:,} = ok {summary.num_ok:,} + failed "
            f"{summary.num_failed:,} + pending {summary.num_pending:,}"
        )
    text = "\n".join(
        [
            f"{plan.num_tasks - num_done:,} of {plan.num_tasks:,} tasks are left and no actor can "
            "take them; all finished tasks are saved. Remove these causes and run the same command "
            "again to resume:",
            *lines,
        ]
    )
    kinds = {record.report.kind if record.report else None for record in records}
    if kinds and kinds <= {FailureKind.STORE, FailureKind.FOREIGN, FailureKind.CHANGED}:
        return StoreError(text)
    if kinds == {FailureKind.NO_BUILD}:
        return NothingCompilesError(text)
    return NoSlotsError(text)
