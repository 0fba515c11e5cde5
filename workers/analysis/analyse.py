"""``analyse_kernel``: how far a kernel reaches into each buffer, and what steers it.

Owns the judgement: what is validated, what is a bound, what is not known and where it went wrong. Probes are
``probing.py``'s, forms ``fit.py``'s, buffers that hold indices ``steering.py``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmperf_common.analysis import Analysis, Extent, Polynomial
from llmperf_common.records import Access, Argument, Kernel
from workers.analysis.facts import KernelFacts, kernel_facts
from workers.analysis.fit import Explained, explain, is_validated
from workers.analysis.instrument import instrument
from workers.analysis.points import FURTHEST_THRESHOLD
from workers.analysis.polynomials import Fit
from workers.analysis.probing import (
    FEWEST_POINTS,
    OTHER_CONTENTS,
    OTHER_FLOATS,
    ProbeLimits,
    Probing,
    Seen,
    probe_limits,
    straddled,
)
from workers.analysis.rewriter import UnresolvedError
from workers.analysis.steering import Steering, find_roles
from workers.clang_parse import ParserCrashError, parse
from workers.device.interface import DeviceFailure, Instrumented, Prober, ProbeRecord, Site

__all__ = ["ProbeLimits", "analyse_kernel", "probe_limits", "unknown"]

_NO_BARRIERS = "#define barrier(...)\n#define work_group_barrier(...)\n"
_MODE_POINTS = 12
_LIGHT_TURNS = 2**16
"""Loops with barriers are not cut off; probes of more turns are not repeated with other contents."""
_FARTHEST_COMPARED = 2**31 - 2**16
"""Constants around the largest of a type are sentinels, not sizes."""


def analyse_kernel(
    kernel: Kernel, prober: Prober, limits: ProbeLimits, *, without_barriers: bool = False
) -> Analysis:
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
        return Analysis(extents=(), data_dependent=False)
    try:
        instrumented = instrument(kernel.source, kernel.name, kernel.build_options)
        facts = _facts(kernel, instrumented)
        if without_barriers:
            instrumented = replace(instrumented, source=_NO_BARRIERS + instrumented.source)
        probing = Probing(
            kernel=kernel, instrumented=instrumented, facts=facts, prober=prober, limits=limits
        )
        found = _Judge(pointers, instrumented, facts, probing).analysis()
        return _as_bounds(found) if without_barriers else found
    except UnresolvedError as error:
        return unknown(kernel, f"cannot be instrumented: {error}")
    except DeviceFailure as error:
        if error.sticky:
            raise
        detail = error.failure.detail.strip()[:400]
        return unknown(kernel, f"the probes failed: {error.failure.code}: {detail}")


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


def unknown(kernel: Kernel, why: str) -> Analysis:
    """Return the analysis of a kernel of which nothing could be found out."""
    assert kernel.signature is not None, "a kernel without signature cannot be analysed"
    return Analysis(
        extents=tuple(
            Extent(position=one.position, form=None, reason=why)
            for one in kernel.signature.arguments
            if one.kind.is_buffer
        ),
        failure=why,
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


class _Judge:
    def __init__(
        self,
        pointers: Sequence[Argument],
        instrumented: Instrumented,
        facts: KernelFacts,
        probing: Probing,
    ) -> None:
        self._pointers = pointers
        self._instrumented = instrumented
        self._facts = facts
        self._probing = probing
        self._thresholds = straddled(facts)

    def analysis(self) -> Analysis:
        overflowing = self._probing.keep_within_arrays()
        return replace(self._within_arrays(), overflowing_local_sizes=overflowing)

    def _within_arrays(self) -> Analysis:
        seen = self._probing.designed()
        if len(seen.points) < FEWEST_POINTS:
            return self._too_few(seen)
        light = _lighter(seen)
        chosen = _every_nth(light, _MODE_POINTS)
        by_mode = [self._probing.run(chosen.points, mode) for mode in OTHER_CONTENTS]
        steered = self._steered(chosen, by_mode)
        is_data_dependent = bool(steered) or self._paths_differ(chosen, by_mode)
        steered |= self._steered(chosen, [self._probing.run(chosen.points, OTHER_FLOATS)])
        steering = Steering(by_target={}, roles=())
        if steered:
            steering = find_roles(
                self._probing, light.points, self._pointers, steered, self._facts.neighbour_pairs
            )
        furthest = self._furthest_of_modes(light) if steered else seen
        extents = []
        for index, argument in enumerate(self._pointers):
            if argument.position in steering.by_target:
                extents.append(self._indexed(argument, index, seen, steering))
            elif argument.position in steered:
                extents.append(self._extent(argument, index, furthest, depends_on_contents=True))
            else:
                extents.append(self._extent(argument, index, seen, depends_on_contents=False))
        return Analysis(
            extents=tuple(extents), data_dependent=is_data_dependent, index_roles=steering.roles
        )

    def _too_few(self, seen: Seen) -> Analysis:
        why = "its probes gave no answer"
        if seen.cut_off_share > seen.overflow_share:
            why = "its loops run too long to be probed"
        elif seen.overflow_share:
            why = "it indexes an array of fixed size beyond its end in nearly every probe"
        return Analysis(
            extents=tuple(
                Extent(position=one.position, form=None, reason=why) for one in self._pointers
            ),
            failure=why,
        )

    # -- contents ----------------------------------------------------------------------------

    def _steered(
        self, chosen: Seen, by_mode: Sequence[Sequence[ProbeRecord | None]]
    ) -> frozenset[int]:
        """Return the buffers whose reach the contents of buffers (or floating-point scalars) change."""
        return frozenset(
            argument.position
            for index, argument in enumerate(self._pointers)
            for records in by_mode
            for first, other in zip(chosen.records, records, strict=True)
            if other is not None
            and first.reaches[index].end_bytes != other.reaches[index].end_bytes
        )

    def _paths_differ(self, chosen: Seen, by_mode: Sequence[Sequence[ProbeRecord | None]]) -> bool:
        """Whether other contents lead to other turns of a loop or to other indices."""
        return any(
            other is not None and (first.turns, first.trace) != (other.turns, other.trace)
            for records in by_mode
            for first, other in zip(chosen.records, records, strict=True)
        )

    def _furthest_of_modes(self, seen: Seen) -> Seen:
        """Return the probes with each buffer's reach the furthest over all contents."""
        modes = [*OTHER_CONTENTS, OTHER_FLOATS]
        all_records = [seen.records, *(self._probing.run(seen.points, mode) for mode in modes)]
        kept = [
            (point, [one for one in column if one is not None and not one.exceeded])
            for point, column in zip(seen.points, zip(*all_records, strict=True), strict=True)
        ]
        records = tuple(_furthest([one for one in column if one is not None]) for _, column in kept)
        return Seen(
            points=seen.points,
            records=records,
            cut_off_share=seen.cut_off_share,
            overflow_share=seen.overflow_share,
        )

    # -- extents -----------------------------------------------------------------------------

    def _extent(
        self, argument: Argument, index: int, seen: Seen, *, depends_on_contents: bool
    ) -> Extent:
        size = max(1, argument.element_bytes)
        extents = [-(-max(0, one.reaches[index].end_bytes) // size) for one in seen.records]
        if not any(extents):
            return self._untouched(argument)
        observed = self._probing.observations(seen.points, extents)
        found = explain(observed, self._thresholds, self._probing.choices())
        site = self._furthest_site(index, seen)
        if found is None:
            why = "no polynomial of the sizes meets its probes"
            if depends_on_contents:
                why = "the contents of buffers decide what is touched"
            return Extent(
                position=argument.position, form=None, reason=f"{why}; furthest at {_place(site)}"
            )
        reasons = self._doubts(index, seen, found, depends_on_contents=depends_on_contents)
        if not found.is_exact:
            reasons.append(f"an upper bound, no exact form; furthest at {_place(site)}")
        validated = is_validated(observed, found) and not reasons
        if not validated and not reasons:
            reasons.append("too few held-out probes could be run")
        return Extent(
            position=argument.position,
            form=self._named(found.form),
            cap=self._named(found.cap) if found.cap is not None else None,
            validated=validated,
            reason="; ".join(reasons),
        )

    def _doubts(
        self, index: int, seen: Seen, found: Explained, *, depends_on_contents: bool
    ) -> list[str]:
        del found
        doubts = []
        if depends_on_contents:
            doubts.append("the contents of buffers decide what is touched: the furthest seen")
        lowest = min(one.reaches[index].start_bytes for one in seen.records)
        if lowest < 0:
            doubts.append(f"reaches {-lowest} bytes below its start")
        far = [
            one for one in self._facts.thresholds if FURTHEST_THRESHOLD < one < _FARTHEST_COMPARED
        ]
        if far:
            doubts.append(f"a size is compared with {far[0]}, which no probe reaches")
        return doubts

    def _untouched(self, argument: Argument) -> Extent:
        if argument.access is Access.NONE:
            zero = Polynomial(constant=0)
            return Extent(position=argument.position, form=zero, validated=True)
        return Extent(
            position=argument.position, form=None, reason="no probe touched it, though the code may"
        )

    def _indexed(self, argument: Argument, index: int, seen: Seen, steering: Steering) -> Extent:
        sources = steering.by_target[argument.position]
        names = ", ".join(one.name for one in self._pointers if one.position in sources)
        site = self._furthest_site(index, seen)
        return Extent(
            position=argument.position,
            form=None,
            reason=f"its index is made of values of {names} ({_place(site)})",
        )

    def _furthest_site(self, index: int, seen: Seen) -> Site | None:
        furthest = max((one.reaches[index] for one in seen.records), key=lambda one: one.end_bytes)
        return self._instrumented.sites[furthest.site - 1] if furthest.site else None

    def _named(self, one: Fit) -> Polynomial:
        return one.named(self._probing.names)


def _lighter(seen: Seen) -> Seen:
    """Return the probes whose loops made few turns: other contents may make them a hundred times longer."""
    by_turns = sorted(range(len(seen.points)), key=lambda index: (seen.records[index].turns, index))
    light = [index for index in by_turns if seen.records[index].turns <= _LIGHT_TURNS]
    kept = sorted(light if len(light) >= FEWEST_POINTS else by_turns[:FEWEST_POINTS])
    return Seen(
        points=tuple(seen.points[index] for index in kept),
        records=tuple(seen.records[index] for index in kept),
        cut_off_share=seen.cut_off_share,
        overflow_share=seen.overflow_share,
    )


def _every_nth(seen: Seen, most: int) -> Seen:
    step = max(1, len(seen.points) // most)
    return Seen(
        points=seen.points[::step],
        records=seen.records[::step],
        cut_off_share=seen.cut_off_share,
        overflow_share=seen.overflow_share,
    )


def _furthest(records: Sequence[ProbeRecord]) -> ProbeRecord:
    reaches = tuple(
        max(column, key=lambda one: one.end_bytes)
        for column in zip(*(one.reaches for one in records), strict=True)
    )
    first = records[0]
    return ProbeRecord(
        reaches=reaches,
        turns=first.turns,
        trace=first.trace,
        exceeded=first.exceeded,
        overflow=first.overflow,
    )


def _place(site: Site | None) -> str:
    return f"line {site.line}: {site.text}" if site is not None else "an unknown place"
