"""``analyse_kernel``: find how far a kernel reaches into each buffer, and what decides that.

Owns the sequence of steps (instrument, read the facts, probe and judge) and the reasons that are
given when a step fails. ``judging.py`` probes and judges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmperf_common.analysis import Analysis
from llmperf_common.records import Kernel
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.other_devices import varies_by_device
from workers.analysis.copy.rewriter import UnresolvedError
from workers.analysis.copy.source_copy import NO_BARRIERS
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

_NOT_REACHED = "which not all work-items reach"
_COSTLY = "of which too many are inside conditions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An analysis, and whether the usual inputs may leave most work-items idle."""

    analysis: Analysis
    may_be_idle: bool = False


def analyse_kernel(
    kernel: Kernel, prober: Prober, limits: ProbeLimits, *, without_barriers: bool = False
) -> Analysis:
    """Return only the analysis of ``judge_kernel``; arguments and errors are the same."""
    return judge_kernel(kernel, prober, limits, without_barriers=without_barriers).analysis


def judge_kernel(
    kernel: Kernel, prober: Prober, limits: ProbeLimits, *, without_barriers: bool = False
) -> Judged:
    """Probe an instrumented copy of a kernel to find which parts of its buffers it accesses.

    Never guesses: if accesses cannot be followed or fit no form, the extent has a reason instead of
    a form.

    Args:
        kernel: a kernel that can be launched.
        prober: runs the probes; the result does not depend on its device.
        limits: the device's limits on probe launches.
        without_barriers: leave the kernel's barriers out. Use it for a kernel whose probes end
            their process because not all work-items reach a barrier. All extents are then bounds.

    Returns:
        One extent for each pointer argument. ``failure`` is set if nothing could be probed.

    Raises:
        DeviceFailure: The device's context was lost (sticky); its process can run nothing more.
    """
    assert kernel.signature is not None, "a kernel without signature cannot be analysed"
    pointers = [one for one in kernel.signature.arguments if one.kind.is_buffer]
    if not pointers:
        return Judged(analysis=Analysis(extents=(), data_dependent=False))
    try:
        instrumented = instrument(kernel.source, kernel.name, kernel.build_options)
        facts = _facts(kernel, instrumented)
        why = _COSTLY if instrumented.lacks_barriers else ""
        if without_barriers and not why:
            instrumented = replace(instrumented, source=NO_BARRIERS + instrumented.source)
            why = _NOT_REACHED
        probing = Probing(
            kernel=kernel, instrumented=instrumented, facts=facts, prober=prober, limits=limits
        )
        is_varying = varies_by_device(kernel.source, kernel.build_options)
        judge = Judge(pointers, instrumented, facts, probing, is_varying=is_varying)
        found = judge.analysis()
        return Judged(
            analysis=_without_barriers(found, why) if why else found,
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


def _without_barriers(analysis: Analysis, which: str) -> Analysis:
    """Mark the extents as not validated; without barriers, work-items may miss shared data."""
    why = f"probed without its barriers, {which}"
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
        raise UnresolvedError(f"the preprocessed source has no kernel {kernel.name!r}")
    return kernel_facts(parsed, function, kernel.signature)
