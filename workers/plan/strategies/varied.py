"""Inputs beside the usual ones: values with which a kernel works, and floating-point numbers other than 1.0.

Owns which global sizes keep the usual values, and what the others get: what was chosen for the kernel
(``InputChoice``; how: ``workers/work/input_choice.py``), and what its analysis has shown to steer nothing. A pure function of
(plan seed, kernel, global size): siblings, and devices, do not differ in it.
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
    integer_scalars,
    is_float_scalar,
    scalar_arguments,
    signed_float,
)

SIGNED = Contents(rule=ContentsRule.SIGNED, limit=2)
SIGNED_SHARE = 0.25
"""Of the global sizes of a kernel whose buffers' contents steer nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """What one launch gets in place of the usual values.

    ``scalars``: by position, those that have another. ``contents``: of buffers whose values steer nothing that is known.
    """

    scalars: Mapping[int, Number] = field(default_factory=dict)
    contents: Contents | None = None


USUAL = Variation()


class Varied(Protocol):
    """Says what launches of a global size get in place of the usual values."""

    def at(self, global_size: Shape) -> Variation:
        """Return the variation of launches of one global size."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenInputs:
    """What was chosen for a kernel and nothing else: the same at every global size."""

    signature: Signature
    choice: InputChoice

    def at(self, global_size: Shape) -> Variation:
        """Return the values of the choice."""
        wanted = [
            (one, self.choice.of_scalar(one.position)) for one in integer_scalars(self.signature)
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

    ``key``: of the draws, with the global size. ``plain_share``: of global sizes that keep the usual values.
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
        # Kernels that do the same whatever is in their buffers; negative numbers were among what was tried.
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
        """Whether floating-point scalars decide no extent, no index and no loop."""
        choice = self.analysis.inputs
        if choice is None or not choice.floats_free:
            return False
        return all(extent.validated for extent in self.analysis.extents)
