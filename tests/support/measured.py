"""Run a command on hostile input and measure the cost: it may refuse, but must not crash."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.collecting import llmperf_command

GIB = 2**30
_POLL_S = 0.02
CODES = (0, 2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended.

    ``code`` is negative for a signal, also for the signal of the time limit. ``cpu_seconds`` counts
    the command and the children that it has waited for, so other jobs of the machine do not
    change it.
    """

    code: int
    out: str
    err: str
    cpu_seconds: float
    peak_bytes: int


def run_measured(
    *arguments: object, timeout_s: float = 60.0, environment: dict[str, str] | None = None
) -> Ended:
    """Run ``llmperf`` with ``arguments`` to its end, or kill its group after ``timeout_s``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            llmperf_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            start_new_session=True,
        )
        killer = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        peak_bytes = 0
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        while not ended:
            peak_bytes = max(peak_bytes, _peak_of(process.pid))
            time.sleep(_POLL_S)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(
        code=process.returncode,
        out=texts[0],
        err=texts[1],
        cpu_seconds=used.ru_utime + used.ru_stime,
        peak_bytes=peak_bytes,
    )


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, size and modification time of every file and folder below ``folder``."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def is_polite(ended: Ended) -> bool:
    """Return whether a command ended with one of LLMPerf's exit codes and no traceback."""
    return ended.code in CODES and not re.search(r"Traceback \(most recent", ended.err)


def _peak_of(pid: int) -> int:
    """Return the peak memory of a process since its program began, in bytes; 0 if it has ended.

    The peak that ``wait4`` returns would include the memory of the parent at the fork.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0
