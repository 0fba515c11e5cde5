"""The failures of a kernel, as values.

Owns the closed set of failure codes (stored in ``samples.status``), the stages at which they occur
and the rule for retrying each. Does not own how a library's error becomes a code: the modules that
import the library (``workers/device/*``) do that by exception type or error number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DETAIL_LIMIT_BYTES = 8 * 1024
OK_STATUS = "ok"


class FailureCode(StrEnum):
    """Why a sample has no time.

    ``samples.status`` stores the code. So codes may be added, but never renamed.
    """

    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    COMPILER_CRASH = "compiler_crash"
    LAUNCH_ERROR = "launch_error"
    DEVICE_FAULT = "device_fault"
    HANG = "hang"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    OVER_TIME_BUDGET = "over_time_budget"
    NODE_LOST = "node_lost"
    QUARANTINED = "quarantined"
    INTERNAL_ERROR = "internal_error"


class Retry(StrEnum):
    """How a failure may be retried before its row is committed (a committed row is final)."""

    NEVER = "never"
    """The same input would fail again, because the source, the launch config or the kernel itself
    is at fault."""
    ONCE_IN_FRESH_CHILD = "once_in_fresh_child"
    """The child process (its memory, for example) may be the cause: try once more in a new
    process."""
    ANOTHER_WORKER = "another_worker"
    """The machine is the cause, so the lease expires and another worker takes the task."""


RETRY_RULES: dict[FailureCode, Retry] = {
    FailureCode.BUILD_ERROR: Retry.NEVER,
    FailureCode.BUILD_TIMEOUT: Retry.NEVER,
    FailureCode.COMPILER_CRASH: Retry.ONCE_IN_FRESH_CHILD,
    FailureCode.LAUNCH_ERROR: Retry.NEVER,
    FailureCode.DEVICE_FAULT: Retry.NEVER,
    FailureCode.HANG: Retry.NEVER,
    FailureCode.OUT_OF_MEMORY: Retry.NEVER,
    FailureCode.UNSUPPORTED: Retry.NEVER,
    FailureCode.OVER_TIME_BUDGET: Retry.NEVER,
    FailureCode.NODE_LOST: Retry.ANOTHER_WORKER,
    FailureCode.QUARANTINED: Retry.NEVER,
    FailureCode.INTERNAL_ERROR: Retry.NEVER,
}

FAILURE_MEANINGS: dict[FailureCode, str] = {
    FailureCode.BUILD_ERROR: "The source could not be parsed, or the compiler rejected it; the "
    "log is in failure_detail.",
    FailureCode.BUILD_TIMEOUT: "The compiler did not finish within limits.build_timeout_s (the "
    "parser: within 30 s) and was killed.",
    FailureCode.COMPILER_CRASH: "The compiler's process died (signal or abort) while building. "
    "The first death by a SIGKILL that the collector did not send is not counted.",
    FailureCode.LAUNCH_ERROR: "The runtime refused the launch: work-group too large, bad NDRange, "
    "bad argument.",
    FailureCode.DEVICE_FAULT: "The process that owned the device died, or the device reported an "
    "error, during a launch. The first death by a SIGKILL that the collector did not send is not "
    "counted.",
    FailureCode.HANG: "A launch did not finish within limits.config_timeout_s, or on a GPU within "
    "the shorter limit for launches if that key is not set; the process was killed.",
    FailureCode.OUT_OF_MEMORY: "A buffer was larger than the device allows, or allocation failed.",
    FailureCode.UNSUPPORTED: "This release cannot fill an argument of this kind (image, sampler, "
    "pipe, ...), or no launch config fits the device.",
    FailureCode.OVER_TIME_BUDGET: "The launch took longer than timing.max_launch_ms; or it was "
    "skipped, because one smaller launch took far longer, several smaller launches took longer, "
    "or limits.task_budget_s was used up. The time is censored.",
    FailureCode.NODE_LOST: "The machine was lost and no other machine could finish the task.",
    FailureCode.QUARANTINED: "Not launched. failure_detail gives the reason: the kernel had "
    "killed limits.deaths_to_quarantine processes, configs of the same input strategy had faulted, "
    "a smaller config hung, or a trial on a CPU device showed accesses outside of the buffers.",
    FailureCode.INTERNAL_ERROR: "LLMPerf itself failed; the traceback is in failure_detail. "
    "Please report it.",
}


class CensorReason(StrEnum):
    """Why a valid launch has no time, although a lower bound of its time is known."""

    TOO_LONG = "too_long"
    """The launch itself took more than ``timing.max_launch_ms``."""
    HUNG = "hung"
    """The launch did not end within ``limits.config_timeout_s``."""
    TASK_BUDGET = "task_budget"
    """The config was not launched, because the task had used up ``limits.task_budget_s`` or
    ``limits.task_timeout_s``."""
    LARGER_THAN_TOO_LONG = "larger_than_too_long"
    """The config was not launched, because configs no larger in any dimension took more than
    ``timing.max_launch_ms``."""
    LARGER_THAN_HUNG = "larger_than_hung"
    """The config was not launched, because a config no larger in any dimension hung."""


class Stage(StrEnum):
    """The step at which a kernel failed."""

    SIGNATURE = "signature"
    BUILD = "build"
    PROBE = "probe"
    LAUNCH = "launch"
    CHECK = "check"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure: its code, its stage and its evidence (shortened to at most 8 KB).

    ``censored`` says why a valid launch has no time; it is None for other failures.
    """

    code: FailureCode
    stage: Stage
    detail: str
    censored: CensorReason | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", shorten_detail(self.detail))


def shorten_detail(text: str, limit_bytes: int = DETAIL_LIMIT_BYTES) -> str:
    """Return the head and the tail of ``text`` in at most ``limit_bytes`` of UTF-8.

    NUL bytes are dropped: Arrow keeps them, but CSV and C tools do not.

    >>> shorten_detail("abc")
    'abc'
    >>> len(shorten_detail("x" * 100_000).encode()) <= DETAIL_LIMIT_BYTES
    True
    """
    raw = text.replace("\0", "").encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode("utf-8", "replace")
    mark = f"\n... {len(raw) - limit_bytes} bytes left out ...\n".encode()
    half = (limit_bytes - len(mark)) // 2
    return (
        raw[:half].decode("utf-8", "ignore") + mark.decode() + raw[-half:].decode("utf-8", "ignore")
    )
