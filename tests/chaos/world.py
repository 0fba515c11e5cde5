"""What a storm blows over: a Ray cluster, a Redis server, and the drivers of one ``llmperf collect --cluster``.

Owns the processes and who of them lives. What befalls them is ``faults.py``'s.
"""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.kills import ChaosReport
from tests.chaos.unkind import Unkind
from tests.support.collecting import Collect
from tests.support.servers.redis_server import RedisServer

LEASE_TTL_S = 4
OPTIONS = (
    "--samples-per-kernel", "3",
    "--set", "timing.spin_up_ms=0",
    "--set", "ledger.claim_ahead=2",
    "--set", f"ledger.lease_ttl_s={LEASE_TTL_S}",
    "--set", "store.commit_interval_s=0",
    "--set", "store.publish_interval_s=0.1",
    "--set", "cluster.restart_delay_s=0.1",
    "--set", "cluster.scan_interval_s=1",
    "--set", "cluster.max_restarts=1000",
)  # fmt: skip
NODE = {"num_gpus": 2}
NODE_MEMORY_BYTES = 100 * 2**20


@dataclass
class World:
    """Everything that a fault may hit."""

    cluster: Any
    server: RedisServer
    command: Collect
    chance: random.Random
    """Whom a fault hits, among those who live."""
    unkind: Unkind | None
    """None where there is no C compiler."""
    report: ChaosReport = field(default_factory=ChaosReport)
    drivers: list[subprocess.Popen[str]] = field(default_factory=list)
    """All that were started, in that order."""

    def start_driver(self) -> None:
        """Submit the command: for the first time, again, or once more."""
        self.report.starts += 1
        with self.log_of(self.report.starts).open("w") as file:
            self.drivers.append(
                subprocess.Popen(
                    self.command.arguments(),
                    stdout=file,
                    stderr=file,
                    text=True,
                    env={**os.environ, **self.command.environment},
                )
            )

    def log_of(self, number: int) -> Path:
        """Return where a driver's words are, the first's being 1."""
        return self.command.out.parent / f"driver-{number}.log"

    def living_drivers(self) -> list[subprocess.Popen[str]]:
        """Return those at work."""
        return [one for one in self.drivers if one.poll() is None]

    def has_finished(self) -> bool:
        """Whether a driver has found everything done."""
        return any(one.poll() == 0 for one in self.drivers)

    def inflict(
        self, pid: int, kind: str, value: object = "", *, seconds: float | None = None
    ) -> None:
        """Let a disk, a clock or a network be unkind to a process, as ``Unkind.inflict``."""
        assert self.unkind is not None, "without a compiler these faults are left out"
        self.unkind.inflict(pid, kind, value, seconds=seconds)

    def end_drivers(self) -> None:
        """Leave none behind, however the storm ended."""
        for one in self.living_drivers():
            one.kill()
            one.wait()

    def processes(self, word: str) -> list[psutil.Process]:
        """Return the processes of this test with ``word`` in their command line."""
        found = []
        for one in psutil.Process().children(recursive=True):
            try:
                if word in " ".join(one.cmdline()):
                    found.append(one)
            except psutil.Error:
                continue
        return found

    def pick(self, word: str) -> psutil.Process | None:
        """Return one of them."""
        found = self.processes(word)
        return self.chance.choice(found) if found else None
