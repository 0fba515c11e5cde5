"""The run child: owns the device context and times launch configs; its parent kills it if it hangs.

The child announces every config before starting it, so that a death can be assigned to a config.
Several run children load kernels side by side; only the holder of the device lock launches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

from llmperf_common.failures import CensorReason, Failure, FailureCode, Stage
from llmperf_common.records import LaunchConfig
from workers.device.interface import DeviceFailure, DeviceRef, LoadedKernel, Program, Session
from workers.discovery.opening import open_session
from workers.measure.device_lock import await_end, device_lock
from workers.measure.launch_processor import kept_waiting_s, launching_from
from workers.measure.run_order import OUT_OF_BUDGET, RunOrder
from workers.measure.task_trace import TaskTrace
from workers.measure.timing import time_config
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.confinement import confine
from workers.sandbox.messages import (
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    FromChild,
    HoldBegan,
    LoadFailed,
    LockTaken,
    PeaksJob,
    RunDone,
    RunJob,
    RunLoaded,
)

_COOLS_AFTER_S = 0.1
"""Seconds without a launch after which the device gets spin-up work before the first timed launch,
because its clocks may have dropped."""
_CLEARED_AFTER_DEATH_S = 0.03
"""Seconds that the driver needs to clear a few GiB of device memory after a process has died
(``device/opencl/freed_memory.py``)."""


def main(channel: Channel, argument: str) -> None:
    """Serve jobs on ``channel`` until it closes; ``argument`` is the DeviceRef as JSON."""
    ref = DeviceRef(**json.loads(argument))
    confine(ref)
    with open_session(ref) as session:
        channel.send(ChildReady(device=session.device))
        while True:
            job = channel.receive()
            if isinstance(job, PeaksJob):
                channel.send(ChildReady(device=session.measure_peaks()))
            else:
                assert isinstance(job, RunJob), job
                _run(channel, session, job)


def _run(channel: Channel, session: Session, job: RunJob) -> None:
    program = Program(
        binary=Path(job.binary_path).read_bytes(), options=job.options, log="", seconds=0.0
    )
    try:
        loaded = session.load(job.kernel, program)
    except DeviceFailure as error:
        channel.send(LoadFailed(load_failure=error.failure, sticky=error.sticky))
        return
    open_configs = [job.configs[index] for index in job.open_indices]
    if job.lock_path:
        with contextlib.suppress(DeviceFailure):  # the call under the lock reports the failure
            loaded.reserve(open_configs, with_padding=job.has_padding, ahead=True)
    channel.send(RunLoaded(loaded_s=time.monotonic()))
    lock_path = Path(job.lock_path) if job.lock_path else None
    with device_lock(lock_path) as handover, launching_from(job.processor):
        channel.send(LockTaken())
        began_s, had_waited_s = time.monotonic(), kept_waiting_s()
        if handover.dead_pid is not None:
            await_end(handover.dead_pid)
            time.sleep(_CLEARED_AFTER_DEATH_S)
        if handover.idle_s is None or handover.idle_s > _COOLS_AFTER_S:
            session.spin_up(job.timing.spin_up_ms)
        health_ns = None if handover.dead_pid is None else session.sentinel_ns()
        channel.send(HoldBegan(began_s=began_s, sentinel_ns=health_ns))
        last_message = _time_configs(channel, session, loaded, job, open_configs)
        if isinstance(last_message, RunDone):
            waited_s = kept_waiting_s() - had_waited_s
            last_message = dataclasses.replace(last_message, kept_waiting_s=waited_s)
        if isinstance(last_message, ConfigFinished):  # sticky: the context and its buffers are lost
            channel.send(last_message)
            _await_kill(channel)
    channel.send(last_message)


def _await_kill(channel: Channel) -> None:
    """Hold the device lock until killed, so that the lost context ends before the lock is free.

    Raises:
        ChannelClosedError: The parent has ended.
    """
    while True:
        channel.receive()


def _time_configs(
    channel: Channel,
    session: Session,
    loaded: LoadedKernel,
    job: RunJob,
    open_configs: Sequence[LaunchConfig],
) -> ConfigFinished | RunDone:
    """Time the job's configs and free its buffers; return the message that ends the job."""
    began_s = time.monotonic()
    try:
        loaded.reserve(open_configs, with_padding=job.has_padding)
    except DeviceFailure as error:
        return ConfigFinished(
            finished_index=job.open_indices[0], outcome=error.failure, sticky=True
        )
    reserved_s = time.monotonic()
    last_index, sticky = _run_configs(channel, loaded, job)
    ran_s = time.monotonic()
    if sticky is not None:
        return sticky
    try:
        loaded.release()
        buffers_s = reserved_s - began_s + time.monotonic() - ran_s
        sentinel_ns = session.sentinel_ns() if job.sentinel else None
    except DeviceFailure as error:
        return ConfigFinished(finished_index=last_index, outcome=error.failure, sticky=True)
    return RunDone(sentinel_ns=sentinel_ns, ended_s=time.monotonic(), buffers_s=buffers_s)


def _run_configs(
    channel: Channel, loaded: LoadedKernel, job: RunJob
) -> tuple[int, ConfigFinished | None]:
    """Time the configs; return the last one's index, and its report if the context is lost."""
    order = RunOrder(
        job.configs, job.launch_ns, job.open_indices, max_launch_ns=job.timing.max_launch_ms * 1e6
    )
    waiting: list[FromChild] = _give_up(order)
    last_index = job.open_indices[-1]
    trace = TaskTrace(num_warmups=job.timing.warmups)
    for last_index in order:
        began_s = time.monotonic()
        channel.send(*waiting, ConfigStarted(started_index=last_index))
        timed = time_config(
            loaded,
            job.configs[last_index],
            job.timing,
            job.device,
            check_payload=last_index in job.check_indices,
            clock=time.monotonic,
        )
        order.note(last_index, timed.launch_ns)
        report = ConfigFinished(
            finished_index=last_index,
            outcome=timed.outcome,
            sticky=timed.sticky,
            launch_ns=timed.launch_ns,
            began_s=began_s,
            ended_s=time.monotonic(),
        )
        if timed.sticky:
            assert isinstance(timed.outcome, Failure), "only failures are sticky"
            return last_index, report
        waiting = [*_give_up(order), report]
        trace.note_config(timed.outcome, began_s, time.monotonic(), launch_ns=timed.launch_ns)
        if job.budget_s is not None and trace.charged_s > job.budget_s:
            waiting += _out_of_budget(order)
    if waiting:
        channel.send(*waiting)
    return last_index, None


def _out_of_budget(order: RunOrder) -> list[FromChild]:
    failure = Failure(
        code=FailureCode.OVER_TIME_BUDGET,
        stage=Stage.LAUNCH,
        detail=OUT_OF_BUDGET,
        censored=CensorReason.TASK_BUDGET,
    )
    return [
        ConfigFinished(finished_index=index, outcome=failure, sticky=False)
        for index in order.take_rest()
    ]


def _give_up(order: RunOrder) -> list[FromChild]:
    return [
        ConfigFinished(finished_index=index, outcome=failure, sticky=False)
        for index, failure in order.take_hopeless()
    ]


if __name__ == "__main__":
    serve(main)
