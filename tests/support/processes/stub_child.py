"""A run child without a device, for the run slot's tests: it answers, and dies where WHERE says.

``python -m tests.support.processes.stub_child DESCRIPTOR PARENT_PID WHERE``
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from llmperf_common.failures import Failure, FailureCode, Stage
from tests.support.processes.stub_device import DEVICE
from workers.measure.device_lock import device_lock
from workers.sandbox.channel import Channel, ChannelClosedError
from workers.sandbox.child_main import serve
from workers.sandbox.messages import (
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    HoldBegan,
    LoadFailed,
    LockTaken,
    RunDone,
    RunJob,
    RunLoaded,
)

OUTCOME = Failure(code=FailureCode.LAUNCH_ERROR, stage=Stage.LAUNCH, detail="a stub cannot launch")


HELD_FOR_S = 0.5
"""Seconds for which ``slow`` and ``crowded`` hold the device."""


def die(by: signal.Signals = signal.SIGSEGV) -> None:
    """End this process by a signal: as in a crash, or SIGKILL as if from another process."""
    os.kill(os.getpid(), by)


def strike(channel: Channel, at: str, where: str) -> None:
    """Do what ``where`` says, if it names ``at``: end, raise, or send nonsense and live."""
    how, _, place = where.partition(" ")
    if place != at:
        return
    if how in ("killed", "crash"):
        die(signal.SIGKILL if how == "killed" else signal.SIGSEGV)
    if how == "leaves":
        os._exit(0)
    if how == "raises":
        raise RuntimeError("a mistake of ours")
    if how == "sleeps":
        time.sleep(60)
    if how == "spins":
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            pass
    if how == "garbled":
        channel.socket.sendall(b"\xff" * 256)
        time.sleep(60)


def main(channel: Channel, where: str) -> None:
    """Serve jobs; ``where`` names the fault, if any.

    * ``load``, ``first load``, ``release``, ``exit``: the child dies there.
    * ``lost load``: the child finds at the load that its context is lost.
    * ``wait``: the child dies while it waits for the device lock.
    * ``killed AT``, ``crash AT``: another process kills the child, or it crashes, at ``start``,
      ``load``, ``held``, ``config``, ``result``, ``last`` (result) or ``exit``.
    * ``leaves AT``, ``raises AT``, ``garbled AT``: there the child ends with exit code 0, raises,
      or sends nonsense and lives.
    * ``sleeps AT``, ``spins AT``: there the child is silent, and waits or uses its processor.
    * ``stand``: the child takes the device lock and never begins.
    * ``crowded``: the child holds the lock for a while, half of this time without a processor.
    * ``sticky``: the first config ends the context.
    * ``slow``: the child holds the lock for a while.
    """
    channel.send(ChildReady(device=DEVICE))
    strike(channel, "start", where)
    while True:
        try:
            job = channel.receive()
        except ChannelClosedError:
            if where == "exit":
                die()
            strike(channel, "exit", where)
            raise
        assert isinstance(job, RunJob)
        mark = Path(job.binary_path)
        if where == "load" or (where == "first load" and not mark.exists()):
            mark.touch()
            die()
        if where == "lost load":
            failure = Failure(code=FailureCode.DEVICE_FAULT, stage=Stage.BUILD, detail="lost")
            channel.send(LoadFailed(load_failure=failure, sticky=True))
            channel.receive()
        strike(channel, "load", where)
        channel.send(RunLoaded())
        if where == "wait":
            die()
        strike(channel, "wait", where)
        with device_lock(Path(job.lock_path) if job.lock_path else None) as handover:
            channel.send(LockTaken())
            if where == "stand":
                time.sleep(60)
            began_s = time.monotonic()
            found_ns = None if handover.dead_pid is None else 1.0
            channel.send(HoldBegan(began_s=began_s, sentinel_ns=found_ns))
            strike(channel, "held", where)
            time.sleep(HELD_FOR_S if where in ("slow", "crowded") else 0)
            for index in job.open_indices:
                channel.send(ConfigStarted(started_index=index))
                strike(channel, "config", where)
                channel.send(finished(index, sticky=where == "sticky"))
                strike(channel, "result", where)
                if where == "sticky":
                    channel.receive()
            if where == "release":
                die()
            strike(channel, "last", where)
            ended_s = (
                time.monotonic()
            )  # as in the real child: then another child may have the device
        waited_s = HELD_FOR_S / 2 if where == "crowded" else 0.0
        channel.send(RunDone(sentinel_ns=None, ended_s=ended_s, kept_waiting_s=waited_s))


def finished(index: int, *, sticky: bool) -> ConfigFinished:
    """Return the message about one finished config."""
    now_s = time.monotonic()
    outcome = replace(OUTCOME, code=FailureCode.DEVICE_FAULT) if sticky else OUTCOME
    return ConfigFinished(
        finished_index=index, outcome=outcome, sticky=sticky, began_s=now_s, ended_s=now_s
    )


if __name__ == "__main__":
    serve(main)
