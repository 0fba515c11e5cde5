"""Run memory analyses in killable children, so that no task is lost if a probe hangs or faults.

Decides what happens after a hang or a death (the task gets simple inputs, and an analysis that has
a reason instead of extents), and which device analyses kernels. ``child_pool.py`` owns the
children.
"""

from __future__ import annotations

import logging
import re

from llmperf_common.analysis import Analysis
from llmperf_common.files.host_paths import without_host_paths
from llmperf_common.records import Kernel
from workers.analysis.unknown import unknown_analysis
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.execution.task_state import TaskState
from workers.sandbox.messages import Analysed, AnalyseJob, FromChild

_logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""Maximum number of children that try a kernel: an earlier kernel may have damaged the first child.
"""
_BARRIER = re.compile(r"\b(?:work_group_)?barrier\b")
_REPORT_CHARACTERS = 2000


class AnalysisWork:
    """The ``PoolWork`` of analysis children: each task gets its analysis and its launch configs."""

    def __init__(self, *, timeout_s: float, chooses: bool = True) -> None:
        self._timeout_s = timeout_s
        self._chooses = chooses

    @property
    def timeout_s(self) -> float:
        """Seconds without an answer after which an analysis child is killed."""
        return self._timeout_s

    def job(self, state: TaskState) -> AnalyseJob:
        """Return the job, and count the attempt."""
        state.num_analysis_attempts += 1
        state.analysed = None
        return analyse_job(state.task.kernel, state.num_analysis_attempts, choose=self._chooses)

    def excuses_kill(self, state: TaskState) -> bool:
        """Excuse the first kill: do not count its attempt. Return False for a later kill."""
        is_excused = state.excuse_kill("analysis")
        state.num_analysis_attempts -= is_excused
        return is_excused

    def take(self, state: TaskState, answer: FromChild) -> bool:
        """Keep the analysis; if it is the last answer, plan the task's launch configs by it."""
        assert isinstance(answer, Analysed), answer
        if answer.no_device:
            _logger.warning("an analysis failed: %s", answer.analysis.failure)
        state.analysed = answer.analysis
        if answer.is_last:
            state.plan_by(answer.analysis)
        return answer.is_last

    def timed_out(self, state: TaskState, after_s: float) -> None:
        """Plan without an analysis, or with usual inputs if the choice of inputs took too long."""
        state.plan_by(left_behind(state.task.kernel, state.analysed, timeout_text(after_s)))

    def died(self, state: TaskState, how: str, report: str, seconds: float) -> bool:
        """Return whether the task may try again; if it may not, plan its launch configs.

        The plan uses the task's analysis, if there is one, with usual inputs. Without an analysis
        it uses simple inputs.
        """
        is_open = state.analysed is None and not report
        if is_open and state.num_analysis_attempts < max_attempts(state.task.kernel):
            return True
        state.plan_by(left_behind(state.task.kernel, state.analysed, death_text(how, report)))
        return False

    def forget(self, state: TaskState) -> None:
        """Do nothing: an analysis leaves no files."""


def max_attempts(kernel: Kernel) -> int:
    """Return the number of attempts at a kernel. If it has barriers, a last attempt removes them.

    A barrier in a branch that not all work-items take is undefined and ends the process on PoCL. A
    kernel's own host program makes all work-items take the branch, but probes do not ensure that.
    """
    return MAX_ATTEMPTS + (_BARRIER.search(kernel.source) is not None)


def analyse_job(kernel: Kernel, attempt: int, *, choose: bool = True) -> AnalyseJob:
    """Return the job of an attempt (counted from 1); ``choose``: the job also chooses inputs."""
    return AnalyseJob(kernel=kernel, without_barriers=attempt > MAX_ATTEMPTS, choose=choose)


def left_behind(kernel: Kernel, known: Analysis | None, why: str) -> Analysis:
    """Return the analysis of a kernel whose child ended: ``known``, or one without extents."""
    if known is None:
        return unknown_analysis(kernel, why)
    return known.with_usual_inputs(without_host_paths(f"while inputs were chosen: {why}"))


def timeout_text(after_s: float) -> str:
    """Return the reason in the analysis of a kernel whose child was killed."""
    return f"the analysis was killed after {after_s:g} s (limits.analysis_timeout_s)"


def death_text(how: str, report: str) -> str:
    """Return the reason after a child's death; ``report``: the traceback of an error in LLMPerf."""
    if report:
        _logger.warning("an analysis failed: %s", report)
        return f"internal error: {report.strip()[-_REPORT_CHARACTERS:]}"
    return f"the analysis ended its process: {how}"


def analysis_device(ref: DeviceRef, how: str) -> DeviceRef:
    """Return the device on which the kernels that ``ref`` times are analysed.

    Args:
        ref: the device that times the kernels.
        how: ``limits.analysis_device``. ``auto`` takes a usable CPU OpenCL device for kernels of a
            GPU, because a kernel touches the same elements on every device and GPU time is scarce.
            ``same`` takes ``ref``.
    """
    if how == "same" or not ref.selector.startswith("cuda"):
        return ref
    found = choose("cpu", tell=lambda line: _logger.warning("device for the analysis: %s", line))
    return ref if isinstance(found, NoDevice) else found
