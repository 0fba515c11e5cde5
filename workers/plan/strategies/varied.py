"""Unusual inputs: values that make more work-items active, and floats other than 1.0.

Decides which global sizes keep the usual values, and what all other sizes get: the ``InputChoice``
of the kernel (made by ``workers/work/input_choice.py``), and random values if the kernel's analysis
shows that they steer nothing. Inputs are a pure function of plan seed, kernel and global size, so
they are equal for siblings and on all devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from llmperf_common.analysis import Analysis, Contents, ContentsRule, InputChoice
from llmperf_common.ids import content_id
from llmperf_common.records import Signature
from workers.plan.ndranges import Draws, Shape
from workers.plan.strategies.scalars import (
    Number,
    chosen_value,
    drawn_float,
    is_float_scalar,
    scalar_arguments,
    signed_float,
)

SIGNED = Contents(rule=ContentsRule.SIGNED, limit=2)
SIGNED_SHARE = 0.25
"""Share of the varied global sizes that get ``SIGNED``, if a kernel's contents steer nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """What one launch gets in place of the usual values.

    ``scalars``: the values that change, by position. ``contents``: contents of the buffers whose
    values are not known to steer the kernel; None: the usual contents.
    """

    scalars: Mapping[int, Number] = field(default_factory=dict)
    contents: Contents | None = None


USUAL = Variation()


class Varied(Protocol):
    """Gives the values that replace the usual ones in launches of a global size."""

    def at(self, global_size: Shape) -> Variation:
        """Return the variation of launches of one global size."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenInputs:
    """Only the choice made for a kernel, the same at every global size."""

    signature: Signature
    choice: InputChoice

    def at(self, global_size: Shape) -> Variation:
        """Return the chosen values; some of them grow with the global size."""
        wanted = [
            (one, self.choice.of_scalar(one.position)) for one in scalar_arguments(self.signature)
        ]
        scalars = {
            one.position: chosen_value(one, global_size, value)
            for one, value in wanted
            if value is not None
        }
        return Variation(scalars=scalars, contents=self.choice.contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedInputs:
    """The variations of one kernel.

    ``key``: seeds the draws, together with the global size. ``plain_share``: share of global sizes
    that keep the usual values.
    """

    signature: Signature
    analysis: Analysis
    key: str
    plain_share: float

    def at(self, global_size: Shape) -> Variation:
        """Return the variation of launches of one global size."""
        if self.plain_share >= 1:
            return USUAL
        draws = Draws(content_id("varied", [self.key, list(global_size)]))
        if draws.unit() < self.plain_share:
            return USUAL
        choice = self.analysis.inputs or InputChoice()
        chosen = ChosenInputs(signature=self.signature, choice=choice).at(global_size)
        scalars = {**self._floats(draws), **chosen.scalars}
        # Contents do not change what the kernel does; the analysis tried negative numbers, too.
        may_be_signed = self.analysis.data_dependent is False and draws.unit() < SIGNED_SHARE
        return Variation(
            scalars=scalars, contents=chosen.contents or (SIGNED if may_be_signed else None)
        )

    def _floats(self, draws: Draws) -> dict[int, Number]:
        floats = [one for one in scalar_arguments(self.signature) if is_float_scalar(one)]
        drawn = {
            one.position: signed_float(drawn_float(draws.unit()), draws.unit()) for one in floats
        }
        return drawn if self._floats_are_free else {}

    @property
    def _floats_are_free(self) -> bool:
        """Whether floating-point scalars affect no extent, no index and no loop."""
        choice = self.analysis.inputs
        if choice is None or not choice.floats_free:
            return False
        return all(extent.validated for extent in self.analysis.extents)
