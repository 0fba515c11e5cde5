"""Judge what the probes of one kernel prove: validated extents, bounds, index buffers, doubts.

Owns the judgement. ``probing.py`` runs the probes, ``fit.py`` fits forms, ``steering.py`` finds the
buffers that hold indices, and ``rehearsal.py`` checks these buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmperf_common.analysis import Analysis, Extent, InputChoice, Polynomial
from llmperf_common.records import Access, Argument
from workers.analysis.challenges import LARGEST_SIDE
from workers.analysis.content_modes import DEFAULT_MODE, OTHER_CONTENTS, OTHER_FLOATS
from workers.analysis.facts import KernelFacts
from workers.analysis.fit import explain, is_validated
from workers.analysis.points import FURTHEST_THRESHOLD
from workers.analysis.polynomials import Fit
from workers.analysis.probing import (
    Probing,
    straddled,
)
from workers.analysis.rehearsal import rehearsed
from workers.analysis.seen import (
    FEWEST_POINTS,
    Seen,
    every_nth,
    furthest,
    lighter,
    looks_idle,
    together,
)
from workers.analysis.steering import Steering, find_roles
from workers.device.interface import Instrumented, ProbeRecord, Site

_MODE_POINTS = 12
_FAR_INDICES = (5000, 2**20)
_FURTHEST_FOLD = LARGEST_SIDE // 2
_FARTHEST_COMPARED = 2**31 - 2**16
"""Larger constants, near the largest value of a type, are special values and not sizes."""


class Judge:
    """Judges one kernel; call ``analysis()``."""

    def __init__(
        self,
        pointers: Sequence[Argument],
        instrumented: Instrumented,
        facts: KernelFacts,
        probing: Probing,
        *,
        is_varying: bool,
    ) -> None:
        self._varies_by_device = is_varying
        self._has_untried_indices = False
        self.may_be_idle = False
        """Whether other inputs than the usual ones are worth a try; set by ``analysis()``."""
        self._float_modes = OTHER_FLOATS if probing.float_scalars(DEFAULT_MODE) else ()
        self._pointers = pointers
        self._instrumented = instrumented
        self._facts = facts
        self._probing = probing
        self._thresholds = straddled(facts)

    def analysis(self) -> Analysis:
        """Probe the kernel and return what the probes prove."""
        overflowing = self._probing.keep_within_arrays()
        return replace(self._within_arrays(), overflowing_local_sizes=overflowing)

    def _within_arrays(self) -> Analysis:
        seen = self._probing.designed()
        if len(seen.points) < FEWEST_POINTS:
            return self._too_few(seen)
        light = lighter(seen)
        chosen = every_nth(light, _MODE_POINTS)
        by_mode = [self._probing.run(chosen.points, mode) for mode in OTHER_CONTENTS]
        steered = self._steered(chosen, by_mode)
        is_data_dependent = bool(steered) or self._paths_differ(chosen, by_mode)
        by_float = [self._probing.run(chosen.points, mode) for mode in self._float_modes]
        steered |= self._steered(chosen, by_float)
        steering = Steering(by_target={}, roles=())
        if steered:
            steering = find_roles(
                self._probing, light.points, self._pointers, steered, self._facts.neighbour_pairs
            )
        self._has_untried_indices = bool(steering.roles) and self._probing.has_uncut_loops
        steered |= self._steered(chosen, self._with_far_indices(chosen, steering))
        widest = self._furthest_of_modes(light, steering) if steered else seen
        seen = together(seen, self._probing.challenged())
        extents = []
        for index, argument in enumerate(self._pointers):
            if argument.position in self._facts.appended:
                extents.append(self._appended(argument, index, seen))
            elif argument.position in steering.by_target:
                extents.append(self._indexed(argument, index, seen, steering))
            elif argument.position in steered:
                extents.append(self._extent(argument, index, widest, depends_on_contents=True))
            else:
                extents.append(self._extent(argument, index, seen, depends_on_contents=False))
        found = Analysis(
            extents=tuple(extents),
            data_dependent=is_data_dependent,
            index_roles=steering.roles,
            inputs=InputChoice(floats_free=not self._paths_differ(chosen, by_float)),
        )
        has_forms = any(one.form is not None for one in extents) or bool(steering.by_target)
        self.may_be_idle = is_data_dependent or not has_forms or looks_idle(seen, self._pointers)
        if self._probing.has_uncut_loops:
            return found
        return rehearsed(found, self._probing, self._pointers)

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
        """Return the buffers whose last accessed byte depends on contents or on float scalars.

        Args:
            chosen: probes with the default contents.
            by_mode: for each other choice of contents or float scalars, the same probes.
        """
        return frozenset(
            argument.position
            for index, argument in enumerate(self._pointers)
            for records in by_mode
            for first, other in zip(chosen.records, records, strict=True)
            if other is not None
            and first.access_ranges[index].end_bytes != other.access_ranges[index].end_bytes
        )

    def _with_far_indices(
        self, seen: Seen, steering: Steering
    ) -> list[tuple[ProbeRecord | None, ...]]:
        """Repeat probes with indices as large as in plans, which may pass other guards."""
        positions = [role.position for role in steering.roles]
        return [
            self._probing.run_far(
                seen.points, DEFAULT_MODE, [dict.fromkeys(positions, limit)] * len(seen.points)
            )
            for limit in (() if self._probing.has_uncut_loops or not positions else _FAR_INDICES)
        ]

    def _paths_differ(self, chosen: Seen, by_mode: Sequence[Sequence[ProbeRecord | None]]) -> bool:
        """Whether other contents change the number of loop iterations or the indices."""
        return any(
            other is not None and (first.turns, first.trace) != (other.turns, other.trace)
            for records in by_mode
            for first, other in zip(chosen.records, records, strict=True)
        )

    def _furthest_of_modes(self, seen: Seen, steering: Steering) -> Seen:
        """Return the probes, each with its furthest reach into each buffer over all contents."""
        modes = [*OTHER_CONTENTS, *self._float_modes]
        all_records = [seen.records, *(self._probing.run(seen.points, mode) for mode in modes)]
        all_records += self._with_far_indices(seen, steering)
        kept = [
            (point, [one for one in column if one is not None and not one.exceeded])
            for point, column in zip(seen.points, zip(*all_records, strict=True), strict=True)
        ]
        records = tuple(furthest([one for one in column if one is not None]) for _, column in kept)
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
        extents = [-(-max(0, one.access_ranges[index].end_bytes) // size) for one in seen.records]
        if not any(extents):
            return self._untouched(argument)
        # At very small sizes a guard like `i > 0 && i < n - 1` excludes every work-item. Probes of
        # such sizes say nothing about the kernel's reach.
        telling = [
            (point, extent)
            for point, extent in zip(seen.points, extents, strict=True)
            if extent or not point.is_tiny
        ]
        observed = self._probing.observations(
            [point for point, _ in telling], [extent for _, extent in telling]
        )
        found = explain(observed, self._thresholds, self._probing.choices())
        site = self._furthest_site(index, seen)
        if found is None:
            why = "no polynomial of the sizes fits its probes"
            if depends_on_contents:
                why = "the contents of buffers decide what is touched"
            return Extent(
                position=argument.position, form=None, reason=f"{why}; furthest at {_place(site)}"
            )
        reasons = self._doubts(index, seen, depends_on_contents=depends_on_contents)
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

    def _doubts(self, index: int, seen: Seen, *, depends_on_contents: bool) -> list[str]:
        doubts = []
        if depends_on_contents:
            doubts.append(
                "the contents of buffers decide what is touched: this is the furthest access seen"
            )
        lowest = min(one.access_ranges[index].start_bytes for one in seen.records)
        if lowest < 0:
            doubts.append(f"reaches {-lowest} bytes below its start")
        facts = self._facts
        for what, constants, most in (
            ("a size is compared with", facts.thresholds, FURTHEST_THRESHOLD),
            ("a size is divided or folded by", facts.folds, _FURTHEST_FOLD),
            ("a size may be compared with", facts.literals, _FURTHEST_FOLD),
        ):
            far = [one for one in constants if most < one < _FARTHEST_COMPARED]
            if far:
                doubts.append(f"{what} {far[0]}, which no probe reaches")
        if self._has_untried_indices:
            doubts.append(
                "larger indices were not tried: its loops with barriers cannot be cut off"
            )
        if self._varies_by_device:
            doubts.append("its text depends on macros of the device")
        return doubts

    def _untouched(self, argument: Argument) -> Extent:
        if argument.access is Access.NONE:
            zero = Polynomial(constant=0)
            return Extent(position=argument.position, form=zero, validated=True)
        return Extent(
            position=argument.position,
            form=None,
            reason="no probe touched the buffer, though the code may",
        )

    def _indexed(self, argument: Argument, index: int, seen: Seen, steering: Steering) -> Extent:
        sources = steering.by_target[argument.position]
        names = ", ".join(one.name for one in self._pointers if one.position in sources)
        site = self._furthest_site(index, seen)
        return Extent(
            position=argument.position,
            form=None,
            reason=f"its index is computed from values of {names} ({_place(site)})",
        )

    def _appended(self, argument: Argument, index: int, seen: Seen) -> Extent:
        site = self._furthest_site(index, seen)
        return Extent(
            position=argument.position,
            form=None,
            reason=f"its index is computed from the result of an atomic operation ({_place(site)})",
        )

    def _furthest_site(self, index: int, seen: Seen) -> Site | None:
        reach = max(
            (one.access_ranges[index] for one in seen.records), key=lambda one: one.end_bytes
        )
        return self._instrumented.sites[reach.site - 1] if reach.site else None

    def _named(self, one: Fit) -> Polynomial:
        return one.named(self._probing.names)


def _place(site: Site | None) -> str:
    return f"line {site.line}: {site.text}" if site is not None else "an unknown place"
