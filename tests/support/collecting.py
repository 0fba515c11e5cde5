"""How integration tests run the real command: as a child process, on a replay or CPU device."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.in_process import llmperf

REPOSITORY = Path(__file__).resolve().parents[2]
KERNELS = REPOSITORY / "kernels"

SAMPLES_A_KERNEL = 4
COMMIT_AT_ONCE = (
    "--samples-per-kernel", str(SAMPLES_A_KERNEL),
    "--set", "timing.spin_up_ms=0",
    "--set", "ledger.lease_ttl_s=2",
    "--set", "store.commit_interval_s=0",
    "--set", "store.publish_interval_s=0.05",
)  # fmt: skip
"""Settings with which each finished task is committed and published at once, so that tests can kill
a run between these steps."""

MAP_KERNEL = """
__kernel void {name}(__global const float *a, __global float *b, const int n) {{
    int i = get_global_id(0);
    if (i < n) b[i] = a[i] * {factor}f;
}}
"""


def write_kernels(folder: Path, names: Iterable[str]) -> Path:
    """Write one small map kernel for each name; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names, start=1):
        source = MAP_KERNEL.format(name=name, factor=f"{index}.5")
        (folder / f"{name}.cl").write_text(source, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Collect:
    """One ``llmperf collect`` command."""

    corpus: Path
    out: Path
    device: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the command line."""
        named = ("--corpus", self.corpus, "--out", self.out, "--device", self.device)
        return llmperf_command("collect", *named, *self.options)

    def start(self, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start the command after the words of ``prefix``; capture the command's output."""
        return subprocess.Popen(
            [*prefix, *self.arguments()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )

    def run(self, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start()
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_here(self) -> subprocess.CompletedProcess[str]:
        """Run the command to its end in this process, which saves a second of imports."""
        assert not self.environment, "it is that of the tests"
        done = llmperf(*self.arguments()[self.arguments().index("collect") :])
        return subprocess.CompletedProcess(self.arguments(), done.code, done.out, done.err)


def llmperf_command(*arguments: object) -> list[str]:
    """Return the command line of ``llmperf`` in this environment."""
    entry = "from llmperf.cli.start import run; run()"
    return [sys.executable, "-c", entry, *(str(argument) for argument in arguments)]


def run_llmperf(*arguments: object, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
    """Run any command."""
    return subprocess.run(
        llmperf_command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def replay_file(path: Path, **content: Any) -> str:
    """Write a replay file; return the device selector."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"replay:{path}"


def events(data: Path) -> list[dict[str, object]]:
    """Return the events of all workers."""
    lines = [
        line for path in (data / "events").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Poll until ``condition`` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of the process ``pid``."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X")


def kill(pid: int) -> None:
    """Send SIGKILL to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
