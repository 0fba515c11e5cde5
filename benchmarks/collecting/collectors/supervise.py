"""Processes that may hang or die: each has a time limit, and a death is counted, never fatal.

Owns starting, watching and killing the processes of every part. The parts own what is timed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.collecting.collectors.jobs import Job, Work, work_to_json, write_work
from benchmarks.collecting.collectors.log import PartLog, begun_items, read_log

_POLL_S = 0.02
_REAP_S = 10.0
_PR_SET_PDEATHSIG = 1
_MOST_STILLBIRTHS = 2
"""If this many processes in a row die before they begin an item, the cause is not a kernel, and the
part ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRun:
    """The record of a part's processes.

    ``is_cut``: the part's time was up before its work was done. ``deaths``: number of processes
    that ended with work left, including the killed ones (``hangs``). ``problem`` says why nothing
    could be timed.
    """

    wall_s: float
    deaths: int = 0
    hangs: int = 0
    is_cut: bool = False
    problem: str = ""


def run_until_done(
    module: str,
    work: Work,
    folder: Path,
    *,
    environment: Mapping[str, str],
    max_s: float,
    silence_s: float,
) -> PartRun:
    """Run ``python -m module WORK LOG`` again and again until it has done all of ``work``.

    Args:
        module: module that skips items which its log marks as begun, so that a death costs only one
            item.
        work: is written to ``folder/work.json``; the log is ``folder/log.jsonl``.
        folder: the part's folder.
        environment: the whole environment of the processes.
        max_s: seconds after which the process is killed and the remaining work is left.
        silence_s: seconds without output after which a process is killed.
    """
    work_path, log_path, stderr_path = (
        folder / n for n in ("work.json", "log.jsonl", "stderr.txt")
    )
    write_work(work_path, work)
    start_s, deaths, hangs, stillbirths = time.monotonic(), 0, 0, 0
    while True:
        num_begun = len(begun_items(read_log(log_path)))
        with stderr_path.open("ab") as stderr:
            process = _start(
                [sys.executable, "-m", module, str(work_path), str(log_path)],
                environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        is_cut, is_hung = _watch(process, log_path, start_s + max_s, silence_s)
        wall_s = time.monotonic() - start_s
        if is_cut:
            return PartRun(wall_s=wall_s, deaths=deaths, hangs=hangs, is_cut=True)
        if process.returncode == 0:
            return PartRun(wall_s=wall_s, deaths=deaths, hangs=hangs)
        deaths, hangs = deaths + 1, hangs + is_hung
        has_begun = len(begun_items(read_log(log_path))) > num_begun
        stillbirths = 0 if has_begun else stillbirths + 1
        if stillbirths >= _MOST_STILLBIRTHS:
            problem = f"{module} does not start: {_tail(stderr_path)}"
            return PartRun(wall_s=wall_s, deaths=deaths, hangs=hangs, problem=problem)


def run_each(
    module: str,
    work: Work,
    folder: Path,
    *,
    environment: Mapping[str, str],
    max_s: float,
    each_s: float,
) -> PartRun:
    """Run a fresh ``python -m module`` for every job of ``work``, with the job as JSON on stdin.

    The process's answer on stdout goes to ``folder/log.jsonl``, with the process's ``wall_s``.

    Args:
        module: module that times one launch config.
        work: jobs with one launch config each.
        folder: the part's folder.
        environment: the whole environment of the processes.
        max_s: seconds after which the remaining work is left.
        each_s: seconds after which a process is killed.
    """
    log_path = folder / "log.jsonl"
    start_s, deaths, hangs = time.monotonic(), 0, 0
    for job in work.jobs:
        left_s = start_s + max_s - time.monotonic()
        limit_s = min(each_s, left_s)
        begun_s = time.monotonic()
        code, answer = (
            (None, "") if left_s <= 0 else _ask(module, _alone(work, job), environment, limit_s)
        )
        wall_s = time.monotonic() - begun_s
        if code is None and limit_s < each_s:  # the part's limit, not the process's
            return PartRun(wall_s=begun_s - start_s, deaths=deaths, hangs=hangs, is_cut=True)
        row = _answer(answer) if code == 0 else None
        if row is None:
            deaths, hangs = deaths + 1, hangs + (code is None)
            row = {"status": "hang" if code is None else "died", "detail": answer[-500:]}
        sample_id = job.launches[0].sample_id
        with PartLog(log_path) as log:
            log.write({"kernel_id": job.kernel_id, "sample_id": sample_id, "wall_s": wall_s, **row})
    return PartRun(wall_s=time.monotonic() - start_s, deaths=deaths, hangs=hangs)


def _answer(output: str) -> dict[str, object] | None:
    """Return the answer in an output in which kernels may also print; None if it has none."""
    for line in reversed(output.splitlines()):
        if line.startswith('{"status": '):
            row: dict[str, object] = json.loads(line)
            return row
    return None


def _alone(work: Work, job: Job) -> str:
    """Return the JSON of the work of one fresh process."""
    return work_to_json(
        Work(
            device_ref=work.device_ref,
            timing={},
            timer_step_ns=None,
            last_level_cache_bytes=0,
            jobs=(job,),
        )
    )


def run_command(
    words: Sequence[str], *, environment: Mapping[str, str], log_path: Path, max_s: float
) -> tuple[int | None, float]:
    """Run a command; return its exit code (None if it was killed) and its wall time in s."""
    start_s = time.monotonic()
    with log_path.open("ab") as log:
        process = _start(words, environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        code: int | None = process.wait(max_s)
    except subprocess.TimeoutExpired:
        code = None
        kill(process)
    except BaseException:
        kill(process)
        raise
    return code, time.monotonic() - start_s


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group; stop waiting if a process stuck in the driver does not end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def _start(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that its group can be killed; it dies with us."""
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(
        list(words),
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  (no thread runs here, and it calls libc only)
    )


def _watch(
    process: subprocess.Popen[bytes], log_path: Path, deadline_s: float, silence_s: float
) -> tuple[bool, bool]:
    """Wait for the end; return whether the part's time was up and whether the process hung."""
    size, heard_s = -1, time.monotonic()
    try:
        while process.poll() is None:
            now_s = time.monotonic()
            grown = log_path.stat().st_size if log_path.exists() else 0
            if grown != size:
                size, heard_s = grown, now_s
            if now_s > deadline_s:
                kill(process)
                return True, False
            if now_s - heard_s > silence_s:
                kill(process)
                return False, True
            time.sleep(_POLL_S)
    except BaseException:  # Ctrl-C: the process has its own session and would go on
        kill(process)
        raise
    return False, False


def _ask(
    module: str, question: str, environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str]:
    pipe = subprocess.PIPE
    process = _start(
        [sys.executable, "-m", module], environment, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        out, err = process.communicate(question.encode(), limit_s)
    except subprocess.TimeoutExpired:
        kill(process)
        return None, f"killed after {limit_s:g} s"
    except BaseException:
        kill(process)
        raise
    return process.returncode, (out if process.returncode == 0 else err).decode(errors="replace")


def _tail(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()[-500:]
