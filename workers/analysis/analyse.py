"""``analyse_kernel``: how far a kernel reaches into each buffer, and what steers it.

Owns the way there: instrument, read the facts, probe and judge (``judging.py``), and what is said where that fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmperf_common.analysis import Analysis
from llmperf_common.records import Kernel
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.preprocess import varies_by_device
from workers.analysis.copy.rewriter import UnresolvedError
from workers.analysis.facts import KernelFacts, kernel_facts
from workers.analysis.judging import Judge
from workers.analysis.probing import (
    ProbeLimits,
    Probing,
    probe_limits,
)
from workers.analysis.unknown import unknown_analysis
from workers.device.interface import DeviceFailure, Instrumented, Prober
from workers.source.clang.parse import ParserCrashError, parse

__all__ = ["Judged", "ProbeLimits", "analyse_kernel", "judge_kernel", "probe_limits"]

NO_BARRIERS = "#define barrier(...)\n#define work_group_barrier(...)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An analysis, and whether the probes leave open that most work-items do nothing on usual inputs."""

    analysis: Analysis
    may_be_idle: bool = False


def analyse_kernel(
    kernel: Kernel, prober: Prober, limits: ProbeLimits, *, without_barriers: bool = False
) -> Analysis:
    """Return the analysis of ``judge_kernel``; arguments and errors are the same."""
    return judge_kernel(kernel, prober, limits, without_barriers=without_barriers).analysis


def judge_kernel(
    kernel: Kernel, prober: Prober, limits: ProbeLimits, *, without_barriers: bool = False
) -> Judged:
    """Find out what a kernel touches, by probing an instrumented copy of it.

    Never guesses: what cannot be followed, or fits no form, has no form and says why and where.

    Args:
        kernel: one that can be launched.
        prober: of any device; the answer does not depend on which.
        limits: of its launches.
        without_barriers: leave its barriers out, for a kernel whose probes end their process with them (in a
            branch that not all work-items take). Its extents are bounds then.

    Returns:
        One extent for each pointer argument. ``failure`` is set where nothing could be probed.

    Raises:
        DeviceFailure: The device's context was lost (sticky): its process is of no further use.
    """
    assert kernel.signature is not None, "a kernel without signature cannot be analysed"
    pointers = [one for one in kernel.signature.arguments if one.kind.is_buffer]
    if not pointers:
        return Judged(analysis=Analysis(extents=(), data_dependent=False))
    try:
        instrumented = instrument(kernel.source, kernel.name, kernel.build_options)
        facts = _facts(kernel, instrumented)
        if without_barriers:
            instrumented = replace(instrumented, source=NO_BARRIERS + instrumented.source)
        probing = Probing(
            kernel=kernel, instrumented=instrumented, facts=facts, prober=prober, limits=limits
        )
        is_varying = varies_by_device(kernel.source, kernel.build_options)
        judge = Judge(pointers, instrumented, facts, probing, is_varying=is_varying)
        found = judge.analysis()
        return Judged(
            analysis=_as_bounds(found) if without_barriers else found,
            may_be_idle=judge.may_be_idle,
        )
    except UnresolvedError as error:
        return Judged(analysis=unknown_analysis(kernel, f"cannot be instrumented: {error}"))
    except DeviceFailure as error:
        if error.sticky:
            raise
        detail = error.failure.detail.strip()[:400]
        why = f"the probes failed: {error.failure.code}: {detail}"
        return Judged(analysis=unknown_analysis(kernel, why))


def _as_bounds(analysis: Analysis) -> Analysis:
    """Return an analysis without barriers: what work-items tell each other was not seen."""
    why = "probed without its barriers, which not all work-items reach"
    return replace(
        analysis,
        extents=tuple(
            replace(one, validated=False, reason="; ".join(filter(None, (why, one.reason))))
            for one in analysis.extents
        ),
    )


def _facts(kernel: Kernel, instrumented: Instrumented) -> KernelFacts:
    assert kernel.signature is not None, "checked by the caller"
    try:
        parsed = parse(instrumented.expanded, kernel.build_options)
    except ParserCrashError as error:
        raise UnresolvedError(str(error)) from error
    function = next((one for one in parsed.kernels if one.name == kernel.name), None)
    if function is None:
        raise UnresolvedError("the kernel is not there after preprocessing")
    return kernel_facts(parsed, function, kernel.signature)
