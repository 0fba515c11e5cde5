"""The messages between the collector and its children: jobs to a child, answers from it.

``channel.py`` frames and sends them.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmperf_common.analysis import Analysis
from llmperf_common.builds import KernelResources
from llmperf_common.failures import Failure
from llmperf_common.features.accesses import AccessTrace
from llmperf_common.features.work import Work
from llmperf_common.records import Device, Kernel, LaunchConfig, Timing
from workers.device.interface import AccessRange
from workers.timing_rule import TimingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """To a compile child: build ``kernel`` and leave its binary at ``binary_path``.

    ``resources_limit_s``: after the build, find the resources of the machine code in at most this
    time; None: do not find them.
    """

    kernel: Kernel
    binary_path: str
    resources_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyseJob:
    """To an analysis child: find out which elements ``kernel`` touches.

    ``without_barriers``: use a copy without barriers. ``choose``: on a CPU, also choose inputs that
    keep more work-items active; SIGXCPU ends the child if the choice takes more than
    ``choice_cpu_s`` of processor time.
    """

    kernel: Kernel
    without_barriers: bool = False
    choose: bool = False
    choice_cpu_s: float = 4.0
    analyse: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """From an analysis child: what it found out, or why it found nothing.

    ``no_device``: the child could not open its device and ends. Unless ``is_last`` is set, another
    ``Analysed`` follows, with the chosen inputs.
    """

    analysis: Analysis
    no_device: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CountJob:
    """To a counting child: count what ``configs`` of ``kernel`` execute.

    ``without_barriers``: run the work-items one after another even if the kernel has barriers.
    ``cpu_s``: processor time after which SIGXCPU ends the child. ``only_ranges``: the access ranges
    are wanted and the counts are not, so fewer work-items run.
    """

    kernel: Kernel
    configs: tuple[LaunchConfig, ...]
    cpu_s: float
    without_barriers: bool = False
    only_ranges: bool = False
    count: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """From a counting child: what some of the job's configs execute, or why that is not known.

    The child sends this message after each config, because the next config may never end.
    ``first``: index of the first of these configs in the job. ``ranges``: the access ranges of each
    of them, as far as its work-items have run. ``covered``: whether these ranges say how far the
    launch reaches. ``is_last``: no further message follows.
    """

    outcomes: tuple[Work | Failure, ...]
    ranges: tuple[tuple[AccessRange, ...], ...] = ()
    covered: tuple[bool, ...] = ()
    first: int = 0
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """To a tracing child: record which bytes the work-items of ``config`` access.

    ``cpu_s`` and ``without_barriers`` are as in ``CountJob``.
    """

    kernel: Kernel
    config: LaunchConfig
    cpu_s: float
    without_barriers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """From a tracing child: the recorded accesses, or why there are none."""

    outcome: AccessTrace | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerReady:
    """From a compile, analysis, counting or tracing child: it has started; its job's time begins.

    A compile child sends this again when a build is done and only its resources are still unknown.
    """

    compiler_ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """From a compile child: the program is at the job's ``binary_path``.

    ``no_resources`` says why ``resources`` is None although the job asked for it.
    """

    options: str
    log: str
    seconds: float
    resources: KernelResources | None = None
    no_resources: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFailed:
    """From a compile child: the compiler refused the source."""

    failure: Failure
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksJob:
    """To a run child: measure the device's peaks."""

    measure_peaks: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """To a run child: load the program, wait for the device, time the open configs, report each.

    ``configs``: all configs of the task. ``open_indices``: the configs to time. ``launch_ns``: the
    duration of one launch of each config (``run_order.HUNG_NS`` if it hung, None if unknown).
    ``check_indices``: the configs with payload checks. ``device``: its record with measured peaks.
    ``lock_path``: the device's lock file, None if no other child uses the device. ``budget_s``: the
    time after which no further config begins; ``task_trace.share_charged_s`` says what counts
    against this time. ``has_padding``: whether buffers get padding. ``processor``: the host
    processor to launch from, None for any.
    """

    kernel: Kernel
    device: Device
    binary_path: str
    options: str
    configs: tuple[LaunchConfig, ...]
    open_indices: tuple[int, ...]
    launch_ns: tuple[float | None, ...]
    check_indices: tuple[int, ...]
    timing: TimingRule
    sentinel: bool
    lock_path: str | None
    budget_s: float | None
    has_padding: bool
    processor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReady:
    """From a run child: its context is open. This is also the answer to a ``PeaksJob``."""

    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoaded:
    """From a run child: the kernel is loaded; until ``LockTaken`` it waits for the device."""

    loaded_s: float = 0.0
    """Monotonic seconds, as are all times in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTaken:
    """From a run child: it holds the device lock, and checks the device before timing."""

    lock_taken: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBegan:
    """From a run child: from now on, the device's time counts as the task's.

    ``sentinel_ns``: the sentinel kernel's time, only if the last holder of the device has died.
    """

    began_s: float = 0.0
    sentinel_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStarted:
    """From a run child: from now on, a death counts against this config (``death_rules.py``)."""

    started_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFinished:
    """From a run child: the outcome of one config; ``sticky``: the child has lost its context.

    ``launch_ns``: duration of a launch, even if it was too long. ``began_s``, ``ended_s``: seconds
    of the monotonic clock, which all processes share; None if the config was not launched.
    """

    finished_index: int
    outcome: Timing | Failure
    sticky: bool
    launch_ns: float | None = None
    began_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """From a run child: the compiled kernel could not be loaded, so no config can run."""

    load_failure: Failure
    sticky: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone:
    """From a run child: all configs are reported, the buffers are released, the device is free."""

    sentinel_ns: float | None
    ended_s: float = 0.0
    buffers_s: float = 0.0
    """Seconds of the hold for allocating buffers before the configs and releasing them after."""
    kept_waiting_s: float = 0.0
    """Seconds of the hold in which the child was ready to run but had no processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCrashed:
    """From any child: an unexpected exception; the child then exits with code 1."""

    traceback: str
    summary: str
    """The exception in one line."""


ToChild = CompileJob | AnalyseJob | CountJob | TraceJob | PeaksJob | RunJob
FromChild = (
    CompilerReady
    | Analysed
    | Counted
    | Traced
    | Compiled
    | CompileFailed
    | ChildReady
    | RunLoaded
    | LockTaken
    | HoldBegan
    | ConfigStarted
    | ConfigFinished
    | LoadFailed
    | RunDone
    | ChildCrashed
)

MESSAGES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CompileJob,
        AnalyseJob,
        Analysed,
        CountJob,
        Counted,
        TraceJob,
        Traced,
        PeaksJob,
        RunJob,
        CompilerReady,
        Compiled,
        CompileFailed,
        ChildReady,
        RunLoaded,
        LockTaken,
        HoldBegan,
        ConfigStarted,
        ConfigFinished,
        LoadFailed,
        RunDone,
        ChildCrashed,
    )
}
"""Each message's class by the name that a frame carries."""
