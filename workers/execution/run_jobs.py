"""The job that a lane sends to its run child, and the failures that it records for configs."""

from __future__ import annotations

from pathlib import Path

from llmperf_common.failures import CensorReason, Failure, FailureCode, Stage
from llmperf_common.records import Device
from workers.config import TimingConfig
from workers.execution.task_state import TaskState
from workers.sandbox.messages import RunJob


def run_job(
    state: TaskState,
    *,
    device: Device,
    binary_path: Path,
    timing: TimingConfig,
    sentinel: bool,
    lock_path: Path | None,
    budget_s: float | None,
    processor: int | None,
) -> RunJob:
    """Return the job that times a task's open configs; the arguments are as in ``RunJob``."""
    return RunJob(
        kernel=state.task.kernel,
        device=device,
        binary_path=str(binary_path),
        options=state.build.options if state.build else "",
        configs=state.configs,
        open_indices=state.open_indices,
        launch_ns=tuple(state.launch_ns),
        check_indices=state.check_indices if timing.payload_checks else (),
        timing=timing.rule(),
        sentinel=sentinel,
        lock_path=str(lock_path) if lock_path else None,
        budget_s=budget_s,
        has_padding=state.needs_padding,
        processor=processor,
    )


def out_of_time(detail: str) -> Failure:
    """Return the failure of a config for which its task has no time left."""
    return Failure(
        code=FailureCode.OVER_TIME_BUDGET,
        stage=Stage.LAUNCH,
        detail=detail,
        censored=CensorReason.TASK_BUDGET,
    )


def launch_failure(code: FailureCode, detail: str) -> Failure:
    """Return the failure of a config that was launched."""
    return Failure(code=code, stage=Stage.LAUNCH, detail=detail)
