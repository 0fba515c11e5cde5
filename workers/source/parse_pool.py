"""Read the kernels of many sources in killable child processes, several at a time.

Owns the children's lifetimes. A source that crashes the parser or exceeds its time limit costs one
child process and gives one coded failure; the run goes on. ``parse_child.py`` is the child's code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pydantic

from llmperf_common.awake_clock import POLL_S, awake_s
from llmperf_common.errors import LlmperfError
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.least_time import DenseAccess
from llmperf_common.installation import HASH_VARIABLE, loaded_installation
from llmperf_common.records import Signature
from workers.sandbox.address_space import memory_limit_text
from workers.sandbox.child_environment import PYTHON, child_environment
from workers.sandbox.processor_use import used_cpu_s
from workers.sandbox.processors import ONE_THREAD
from workers.source.parse_memory import MEMORY_STATUS, USED_STATUS, most_bytes
from workers.source.read_kernel import ReadKernel

_logger = logging.getLogger(__name__)

FILE_TIMEOUT_S = 30.0
"""Time limit for one file, in seconds. On a busy machine the child's CPU time counts instead, so
that other processes do not change a result."""
_MAX_EXTENSIONS = 10
_WORKING_SHARE = 0.02
"""Minimum share of a core: a child that has used less since the last check gets no extension."""
SOURCES_PER_CHILD = 64
"""Minimum sources for each child. For fewer, a further child takes longer to start than it saves.
"""
MAX_CHILDREN = 16
_READ_BYTES = 1 << 16
_SIGNATURE: pydantic.TypeAdapter[Signature] = pydantic.TypeAdapter(Signature)
_DENSE: pydantic.TypeAdapter[tuple[DenseAccess, ...]] = pydantic.TypeAdapter(
    tuple[DenseAccess, ...]
)
_FAILURE: pydantic.TypeAdapter[Failure] = pydantic.TypeAdapter(Failure)

_SOUND_SOURCE = "kernel void sound(global int *x) { x[0] = 1; }"

Parsed = tuple[ReadKernel, ...] | Failure


class ParserError(LlmperfError):
    """The parser fails on this machine, perhaps for lack of memory; no source is at fault."""


def parse_sources(
    sources: Sequence[str],
    build_options: str = "",
    *,
    num_children: int | None = None,
    timeout_s: float = FILE_TIMEOUT_S,
    command: Sequence[str] | None = None,
) -> list[Parsed]:
    """Return the kernels of every source, or its failure, in the order of ``sources``.

    Args:
        sources: OpenCL C texts.
        build_options: options for the device's compiler.
        num_children: child processes at a time. Default: one, and one more for every 64 sources, up
            to the number of cores.
        timeout_s: time limit for one source, in seconds; a source that takes longer fails with
            ``build_timeout``. If a child shares its core with other processes, this limit applies
            to its CPU time, and about ten times this limit to its wall time.
        command: the child's command line; the tests pass a child that hangs or crashes.

    Raises:
        ParserError: The parser crashed on every source and on a known good one.
        InstallationChanged: LLMPerf's files are not those that this process has loaded.
    """
    if not sources:
        return []
    if num_children is None:
        wanted = 1 + len(sources) // SOURCES_PER_CHILD
        num_children = min(wanted, os.cpu_count() or 1, MAX_CHILDREN)
    argv = tuple(command or (*PYTHON, "-m", "workers.source.parse_child", str(os.getpid())))
    with _Pool(argv, num_children, timeout_s) as pool:
        jobs = (
            json.dumps({"source": source, "build_options": build_options}) for source in sources
        )
        answers = pool.run(jobs, len(sources))
        crashes = [
            one
            for one in answers
            if isinstance(one, Failure) and one.code is FailureCode.COMPILER_CRASH
        ]
        if len(crashes) < len(answers):
            return answers
        sound = json.dumps({"source": _SOUND_SOURCE, "build_options": build_options})
        [found] = pool.run(iter([sound]), 1)
    if isinstance(found, Failure):
        mend = memory_limit_text() or "run `llmperf doctor`, and check how much memory is free"
        raise ParserError(f"the OpenCL C parser does not work here ({found.detail}): {mend}")
    return answers


def signature_from_json(value: Any) -> Signature:
    """Return the signature that a JSON value describes.

    Raises:
        ValueError: The value does not describe a signature.
    """
    return _SIGNATURE.validate_python(value)


class _ParseChild:
    """One child with at most one job."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv,
            env=child_environment(ONE_THREAD, {HASH_VARIABLE: loaded_installation().sha256}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.job: int | None = None
        self.line = ""
        self.is_fresh = True
        self.deadline_s = float("inf")
        self._buffer = bytearray()  # adding to bytes would copy a long answer again and again
        self._cpu_at_start_s = self._cpu_at_check_s = 0.0
        self._num_extensions = 0

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def give(self, job: int, line: str, deadline_s: float) -> None:
        """Send a job; if the child has died, the next read reports it."""
        self.job, self.line, self.deadline_s = job, line, deadline_s
        self._buffer.clear()
        self._cpu_at_start_s = self._cpu_at_check_s = self._cpu_s()
        self._num_extensions = 0
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def read(self) -> str | None:
        """Return the answer, or None while it is incomplete; raise EOFError if the child died."""
        piece = os.read(self.fileno(), _READ_BYTES)
        if not piece:
            raise EOFError
        self._buffer += piece
        return self._buffer.decode() if self._buffer.endswith(b"\n") else None

    def extend(self, now_s: float, timeout_s: float) -> bool:
        """Extend the deadline of a late child that works and has CPU time left; False if not."""
        used_s = self._cpu_s()
        works = used_s - self._cpu_at_check_s >= _WORKING_SHARE * timeout_s
        left_s = timeout_s - (used_s - self._cpu_at_start_s)
        if not works or left_s <= 0 or self._num_extensions == _MAX_EXTENSIONS:
            return False
        self._cpu_at_check_s = used_s
        self._num_extensions += 1
        self.deadline_s = now_s + max(left_s, timeout_s / 4)
        return True

    def _cpu_s(self) -> float:
        return used_cpu_s(self._process.pid)  # 0 if it has died, which the next read reports

    def end(self, *, kill: bool) -> int:
        """End the child and return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kill:
            self._process.kill()
        # For a child that died early, unsent bytes of its job may still be in the buffer.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


class _Pool:
    def __init__(self, argv: Sequence[str], num_children: int, timeout_s: float) -> None:
        self._argv = argv
        self._timeout_s = timeout_s
        self._selector = selectors.DefaultSelector()
        self._children: set[_ParseChild] = set()
        self._num_children = num_children
        self._killed: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in list(self._children):
            self._drop(child, kill=child.job is not None)
        self._selector.close()

    def run(self, lines: Iterator[str], num_jobs: int) -> list[Parsed]:
        """Run every job and return the answers in order."""
        answers: list[Parsed | None] = [None] * num_jobs
        jobs = enumerate(lines)
        idle = [self._start() for _ in range(min(self._num_children, num_jobs))]
        num_done = 0
        while num_done < num_jobs:
            while idle and (job := next(jobs, None)) is not None:
                child = idle.pop()
                child = child if child in self._children else self._start()
                child.give(*job, awake_s() + self._timeout_s)
            for child, result in self._wait():
                assert child.job is not None
                answers[child.job] = result
                num_done += 1
                child.job, child.deadline_s, child.is_fresh = None, float("inf"), False
                idle.append(child if child in self._children else self._start())
        return [one for one in answers if one is not None]

    def _wait(self) -> Iterator[tuple[_ParseChild, Parsed]]:
        soonest_s = min(child.deadline_s for child in self._children)
        ready = self._selector.select(min(POLL_S, max(0.0, soonest_s - awake_s())))
        for key, _ in ready:
            child: _ParseChild = key.data
            try:
                line = child.read()
            except EOFError:
                status = self._drop(child, kill=False)
                if child.job is None:
                    continue  # the child died after its answer; run() replaces it
                if status == -signal.SIGKILL and child.job not in self._killed:
                    self._killed.add(child.job)
                    _logger.warning("a parser: killed by another process; retrying once")
                elif child.is_fresh or status == MEMORY_STATUS:
                    loaded_installation().check()  # a child refuses to start with other files
                    detail = _death(status, json.loads(child.line)["source"])
                    yield child, _failure(FailureCode.COMPILER_CRASH, detail)
                    continue
                # Another process may have killed the child, or an earlier source may have damaged
                # it. So this source gets a new child.
                fresh = self._start()
                fresh.give(child.job, child.line, awake_s() + self._timeout_s)
                continue
            if line is not None:
                yield child, _decoded(line, json.loads(child.line)["source"])
        now_s = awake_s()
        for child in [one for one in self._children if one.deadline_s <= now_s]:
            if child.extend(now_s, self._timeout_s):
                continue
            self._drop(child, kill=True)
            detail = f"the parser did not finish within {self._timeout_s:g} s"
            yield child, _failure(FailureCode.BUILD_TIMEOUT, detail)

    def _start(self) -> _ParseChild:
        loaded_installation().check()
        child = _ParseChild(self._argv)
        self._children.add(child)
        self._selector.register(child, selectors.EVENT_READ, child)
        return child

    def _drop(self, child: _ParseChild, *, kill: bool) -> int:
        self._selector.unregister(child)
        self._children.discard(child)
        return child.end(kill=kill)


def _decoded(line: str, source: str) -> Parsed:
    answer = json.loads(line)
    if "failure" in answer:
        return _FAILURE.validate_python(answer["failure"])
    return tuple(_kernel(one, source, answer.get("errors", [])) for one in answer["kernels"])


def _kernel(one: dict[str, Any], source: str, errors: list[str]) -> ReadKernel:
    signature, failure = one.get("signature"), one.get("failure")
    return ReadKernel(
        name=one["name"],
        source=one.get("source", source),
        build_options=one["build_options"],
        invented=tuple(one.get("invented", ())),
        signature=None if signature is None else signature_from_json(signature),
        failure=None if failure is None else _FAILURE.validate_python(failure),
        errors=tuple([errors[number] for number in one.get("errors", ())]),
        dense=_DENSE.validate_python(one.get("dense", ())),
    )


def _death(status: int, source: str) -> str:
    if status in {MEMORY_STATUS, USED_STATUS}:
        return (
            f"the parser needs more than {most_bytes(source) // 2**20:,} MiB for this source of "
            f"{len(source):,} characters; a macro may expand to too much text"
        )
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = "a real-time signal"  # only the first and the last of these have names
        whose = (
            " that LLMPerf did not send; memory may have run out"
            if status == -signal.SIGKILL
            else ""
        )
        return f"the parser died of signal {-status} ({name}){whose}"
    return f"the parser's process ended with status {status}"


def _failure(code: FailureCode, detail: str) -> Failure:
    return Failure(code=code, stage=Stage.SIGNATURE, detail=detail)
