"""The run child: owns the device context and times launch configs; its parent kills it when one hangs.

Every config is announced before it starts, so that a death has an owner.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from llmperf_common.failures import Failure
from workers.channel import (
    Channel,
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    LoadFailed,
    PeaksJob,
    RunDone,
    RunJob,
)
from workers.child_main import serve
from workers.device.find import open_session
from workers.device.interface import DeviceFailure, DeviceRef, LoadedKernel, Program, Session
from workers.timing import time_config


def main(channel: Channel, argument: str) -> None:
    """Serve jobs on ``channel`` until it closes; ``argument`` is the DeviceRef as JSON."""
    with open_session(DeviceRef(**json.loads(argument))) as session:
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
        session.spin_up(job.timing.spin_up_ms)
        loaded = session.load(job.kernel, program)
    except DeviceFailure as error:
        channel.send(LoadFailed(load_failure=error.failure, sticky=error.sticky))
        return
    if not _run_configs(channel, loaded, job):
        return
    try:
        loaded.release()
        sentinel_ns = session.sentinel_ns() if job.sentinel else None
    except DeviceFailure as error:
        last = job.first_index + len(job.configs) - 1
        channel.send(ConfigFinished(finished_index=last, outcome=error.failure, sticky=True))
        return
    channel.send(RunDone(sentinel_ns=sentinel_ns))


def _run_configs(channel: Channel, loaded: LoadedKernel, job: RunJob) -> bool:
    """Time the job's configs; False when a sticky failure ends the child's usefulness."""
    for index, config in enumerate(job.configs, start=job.first_index):
        channel.send(ConfigStarted(started_index=index))
        timed = time_config(
            loaded,
            config,
            job.timing,
            job.device,
            check_payload=index in job.check_indices,
            clock=time.monotonic,
        )
        channel.send(
            ConfigFinished(finished_index=index, outcome=timed.outcome, sticky=timed.sticky)
        )
        if timed.sticky:
            assert isinstance(timed.outcome, Failure), "only failures are sticky"
            return False
    return True


if __name__ == "__main__":
    serve(main)
