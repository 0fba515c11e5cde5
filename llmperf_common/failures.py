"""What can go wrong with a kernel, as values.

Owns the closed set of failure codes (they become ``samples.status``), the stage at which each was met
and the rule that says whether trying again can help. Does not own how a library's error becomes a code:
each door (``workers/device/*``) does that by type or error number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DETAIL_LIMIT_BYTES = 8 * 1024
OK_STATUS = "ok"


class FailureCode(StrEnum):
    """Why a sample has no time. Stored in ``samples.status``; never renamed, only added to."""

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
    """What may be done about a failure before its row is committed (a committed row is final)."""

    NEVER = "never"
    """The same input fails again: the source, the launch config or the kernel itself is at fault."""
    ONCE_IN_FRESH_CHILD = "once_in_fresh_child"
    """The child's state (its memory, say) may be to blame: try once more in a new one."""
    ANOTHER_WORKER = "another_worker"
    """The machine is to blame: the lease runs out and another worker takes the task."""


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
    FailureCode.BUILD_ERROR: "The source could not be read or the compiler rejected it; the log is in failure_detail.",
    FailureCode.BUILD_TIMEOUT: "The compiler did not finish within limits.build_timeout_s (the parser: within 30 s) and was killed.",
    FailureCode.COMPILER_CRASH: "The compiler's process died (signal or abort) while building. A first SIGKILL that was not the collector's does not count.",
    FailureCode.LAUNCH_ERROR: "The runtime refused the launch: work-group too large, bad NDRange, bad argument.",
    FailureCode.DEVICE_FAULT: "The process that owned the device died, or the device reported an error, during a launch. A first SIGKILL that was not the collector's does not count.",
    FailureCode.HANG: "A launch did not finish within limits.config_timeout_s; the process was killed.",
    FailureCode.OUT_OF_MEMORY: "A buffer was larger than the device allows, or allocation failed.",
    FailureCode.UNSUPPORTED: "An argument is of a kind this release cannot fill (image, sampler, pipe, ...), or no launch config fits the device.",
    FailureCode.OVER_TIME_BUDGET: "One launch took longer than timing.max_launch_ms, or was not tried because smaller ones did (one by far, or several) or limits.task_budget_s was used up; the time is censored.",
    FailureCode.NODE_LOST: "The machine went away and no other could finish the task.",
    FailureCode.QUARANTINED: "Not tried: the kernel had killed limits.deaths_to_quarantine processes, its input strategy had faulted, a smaller config hung, or a CPU device showed that it would leave its buffers (failure_detail says which).",
    FailureCode.INTERNAL_ERROR: "LLMPerf itself failed; the traceback is in failure_detail. Please report it.",
}


class CensorReason(StrEnum):
    """Why a sound launch has no time: a lower bound of the time that it would have taken."""

    TOO_LONG = "too_long"
    """The launch itself took more than ``timing.max_launch_ms``."""
    HUNG = "hung"
    """It did not end within ``limits.config_timeout_s``."""
    TASK_BUDGET = "task_budget"
    """Not launched: ``limits.task_budget_s`` or ``limits.task_timeout_s`` was spent by others of its task."""
    LARGER_THAN_TOO_LONG = "larger_than_too_long"
    """Not launched: configs that are larger in nothing took more than ``timing.max_launch_ms``."""
    LARGER_THAN_HUNG = "larger_than_hung"
    """Not launched: a config no larger in any dimension hung."""


class Stage(StrEnum):
    """Where on its way a kernel failed."""

    SIGNATURE = "signature"
    BUILD = "build"
    PROBE = "probe"
    LAUNCH = "launch"
    CHECK = "check"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure: its code, the stage and the evidence (head and tail kept, at most 8 KB).

    ``censored``: why the time is not known, where the launch would have had one.
    """

    code: FailureCode
    stage: Stage
    detail: str
    censored: CensorReason | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", shorten_detail(self.detail))


def shorten_detail(text: str, limit_bytes: int = DETAIL_LIMIT_BYTES) -> str:
    """Return ``text`` within ``limit_bytes`` of UTF-8, keeping its head and its tail.

    NUL bytes are dropped: Arrow keeps them but CSV and C tools do not.

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
