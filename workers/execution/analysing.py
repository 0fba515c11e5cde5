"""Memory analysis as the work of killable children: a kernel in, what it touches out, whatever a probe does.

Owns what an analysis may cost: a child that hangs or dies leaves an analysis that knows nothing and says why, and
the task goes on with simple inputs. Also where kernels are analysed. The children: ``child_pool.py``.
"""

from __future__ import annotations

import logging
import re

from llmperf_common.analysis import Analysis
from llmperf_common.records import Kernel
from workers.analysis.unknown import unknown_analysis
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.execution.task_state import TaskState
from workers.sandbox.channel import Analysed, AnalyseJob, FromChild

_logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""Children that may analyse a kernel: an earlier kernel may have ruined the first."""
_BARRIER = re.compile(r"\b(?:work_group_)?barrier\b")
_REPORT_CHARACTERS = 2000


class AnalysisWork:
    """The ``PoolWork`` of analysis children: each task gets its analysis, and with it its launch configs."""

    def __init__(self, *, timeout_s: float, chooses: bool = True) -> None:
        self._timeout_s = timeout_s
        self._chooses = chooses

    @property
    def timeout_s(self) -> float:
        """An analysis without an answer for this long is killed."""
        return self._timeout_s

    def job(self, state: TaskState) -> AnalyseJob:
        """Return the job, and count the attempt."""
        state.num_analysis_attempts += 1
        state.analysed = None
        return analyse_job(state.task.kernel, state.num_analysis_attempts, choose=self._chooses)

    def excuses_kill(self, state: TaskState) -> bool:
        """Take the attempt back, once."""
        is_excused = state.excuse_kill("analysis")
        state.num_analysis_attempts -= is_excused
        return is_excused

    def take(self, state: TaskState, answer: FromChild) -> bool:
        """Plan the task by what was found out."""
        assert isinstance(answer, Analysed), answer
        if answer.no_device:
            _logger.warning("an analysis failed: %s", answer.analysis.failure)
        state.analysed = answer.analysis
        if answer.is_last:
            state.plan_by(answer.analysis)
        return answer.is_last

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """Plan the task by nothing, or without a choice of inputs."""
        state.plan_by(left_behind(state.task.kernel, state.analysed, timeout_text(after_s)))

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Try once more, or plan the task by nothing; an analysis that is known stays: it was the choice of inputs that ended it."""
        is_open = state.analysed is None and not report
        if is_open and state.num_analysis_attempts < max_attempts(state.task.kernel):
            return True
        state.plan_by(left_behind(state.task.kernel, state.analysed, death_text(how, report)))
        return False

    def forget(self, state: TaskState) -> None:
        """Nothing is left behind."""


def max_attempts(kernel: Kernel) -> int:
    """Return how many children may die of one kernel: one more, without barriers, where it has some.

    A barrier in a branch that not all work-items take is undefined, and ends a process on PoCL. Guards of that kind
    are harmless in their own host program, where all work-items take them; probes lie on both sides.
    """
    return MAX_ATTEMPTS + (_BARRIER.search(kernel.source) is not None)


def analyse_job(kernel: Kernel, attempt: int, *, choose: bool = True) -> AnalyseJob:
    """Return the job of an attempt; the first is 1. ``choose``: inputs with which the kernel works, too."""
    return AnalyseJob(kernel=kernel, without_barriers=attempt > MAX_ATTEMPTS, choose=choose)


def left_behind(kernel: Kernel, known: Analysis | None, why: str) -> Analysis:
    """Return what is known of a kernel whose child was killed or died: its analysis if that was done, else nothing."""
    if known is None:
        return unknown_analysis(kernel, why)
    return known.with_usual_inputs(f"while inputs were chosen: {why}")


def timeout_text(after_s: float) -> str:
    """Say that an analysis was killed."""
    return f"the analysis was killed after {after_s:g} s (limits.analysis_timeout_s)"


def death_text(how: str, report: str) -> str:
    """Say how an analysis ended its process; ``report`` is an exception of ours."""
    if report:
        _logger.warning("an analysis failed: %s", report)
        return f"internal error: {report.strip()[-_REPORT_CHARACTERS:]}"
    return f"the analysis ended its process: {how}"


def analysis_device(ref: DeviceRef, how: str) -> DeviceRef:
    """Return where kernels that run on ``ref`` are analysed.

    Args:
        ref: the device that times them.
        how: ``limits.analysis_device``: ``auto`` takes a usable CPU OpenCL device for the kernels of a GPU,
            since what a kernel touches is the same everywhere and the GPU's time is dear; ``same`` is ``ref``.
    """
    if how == "same" or not ref.selector.startswith("cuda"):
        return ref
    found = choose("cpu", tell=lambda line: _logger.warning("for the analysis: %s", line))
    return ref if isinstance(found, NoDevice) else found
