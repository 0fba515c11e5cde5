"""A run child without a device, for the run slot's tests: it answers, and dies where it is told to.

``python -m tests.integration.stub_child DESCRIPTOR PARENT_PID WHERE``
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from llmperf_common.failures import Failure, FailureCode, Stage
from tests.integration.stub_device import DEVICE
from workers.channel import (
    Channel,
    ChannelClosedError,
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    RunDone,
    RunJob,
    RunLoaded,
    TurnBegan,
)
from workers.child_main import serve

OUTCOME = Failure(code=FailureCode.LAUNCH_ERROR, stage=Stage.LAUNCH, detail="a stub cannot launch")


def die() -> None:
    """End at once, by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(channel: Channel, where: str) -> None:
    """Serve jobs; ``where`` is ``load``, ``first load``, ``release``, ``exit`` or empty."""
    channel.send(ChildReady(device=DEVICE))
    while True:
        try:
            job = channel.receive()
        except ChannelClosedError:
            if where == "exit":
                die()
            raise
        assert isinstance(job, RunJob)
        mark = Path(job.binary_path)
        if where == "load" or (where == "first load" and not mark.exists()):
            mark.touch()
            die()
        channel.send(RunLoaded(), TurnBegan())
        for index in job.open_indices:
            channel.send(ConfigStarted(started_index=index))
            channel.send(
                ConfigFinished(
                    finished_index=index, outcome=OUTCOME, sticky=False, began_s=1.0, ended_s=2.0
                )
            )
        if where == "release":
            die()
        channel.send(RunDone(sentinel_ns=None))


if __name__ == "__main__":
    serve(main)
