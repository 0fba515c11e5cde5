"""The three input strategies as functions of the NDRange, and which of them a kernel allows.

Owns the fall-back: if an analysis does not suffice for a strategy, the next simpler strategy plans
the configs, under its own label. So a kernel whose analysis failed has configs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from llmperf_common.analysis import Analysis, InputChoice
from llmperf_common.ids import content_id
from llmperf_common.records import (
    DeviceClass,
    Kernel,
    LaunchArgument,
    Signature,
    Strategy,
)
from workers.plan.ndranges import Draws, Shape
from workers.plan.strategies.buffers import AnalysedBuffers, simple_argument
from workers.plan.strategies.memory_limits import buffer_bytes, fits
from workers.plan.strategies.scalars import (
    DRAWN_LOOP_LIMITS,
    LOOP_LIMITS,
    Number,
    drawn_float,
    drawn_value,
    integer_scalars,
    is_float_scalar,
    role_value,
    scalar_arguments,
)
from workers.plan.strategies.varied import ChosenInputs, Varied, VariedInputs

if TYPE_CHECKING:  # an analysis child imports this module, and needs no pydantic
    from workers.config import PlanConfig

Arguments = tuple[LaunchArgument, ...]
_TRIAL_BYTES = 2**30  # assumed limit of a launch's buffers where no device is given


class InputRule(Protocol):
    """One strategy applied to one kernel."""

    @property
    def strategy(self) -> Strategy:
        """The label of the planned configs."""
        ...

    @property
    def allows(self) -> Callable[[Shape], bool]:
        """Tells whether the kernel's own arrays are large enough for a local size."""
        ...

    def arguments(self, global_size: Shape, local_size: Shape) -> Arguments:
        """Return the arguments of one launch, in position order; a pure function."""
        ...


def any_local_size(_: Shape) -> bool:
    """Allow every local size, because nothing is known about the kernel's arrays."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleRule:
    """Buffers and integers as large as the NDRange; source: LLMPerf, arXiv 2503.11244.

    ``given``: elements of buffers and values of scalars that the user has fixed, by position.
    """

    signature: Signature
    allows: Callable[[Shape], bool] = any_local_size
    strategy: Strategy = Strategy.SIMPLE
    given: Mapping[int, Number] = field(default_factory=dict)

    def arguments(self, global_size: Shape, local_size: Shape) -> Arguments:
        """Return g**dims elements for buffers, global size 0 for integers, 1.0 for floats."""
        return tuple(
            simple_argument(one, global_size, local_size, self.given.get(one.position))
            for one in self.signature.arguments
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnalysisRule:
    """Gives scalars the values of their roles, or those chosen for the kernel.

    Each buffer gets as many elements as the memory analysis says that the launch accesses.
    ``varied``: gives some launches other values of scalars in place of the usual ones.
    ``fits_memory``: tells whether the buffers of a launch can be allocated.
    """

    buffers: AnalysedBuffers
    varied: Varied
    fits_memory: Callable[[Arguments], bool]
    strategy: Strategy = Strategy.MEMORY_ANALYSIS

    @property
    def allows(self) -> Callable[[Shape], bool]:
        """Tells whether the kernel's own arrays are large enough for a local size."""
        return self.buffers.analysis.allows

    def arguments(self, global_size: Shape, local_size: Shape) -> Arguments:
        """Return the scalars for the NDRange, and the buffers for the NDRange and these scalars."""
        variation = self.varied.at(global_size)
        fixed = {**variation.scalars, **self.buffers.given}

        def with_limit(limit: int) -> Arguments:
            values = {
                one.position: fixed.get(one.position, role_value(one, global_size, limit))
                for one in scalar_arguments(self.buffers.signature)
            }
            return self.buffers.arguments(global_size, local_size, values, variation.contents)

        return _first_that_fits(with_limit, LOOP_LIMITS, self.fits_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledRule:
    """Scalars are drawn independently of the NDRange; the buffers follow from the extents.

    Floating-point scalars are drawn only if every extent is validated, because then no extent
    depends on them.

    ``key``: seeds the draws, together with the global size. Launches of one global size have the
    same draws, so that siblings differ only in the local size. ``varied``, ``fits_memory``: as in
    ``MemoryAnalysisRule``; a scalar with a chosen value is not drawn.
    """

    buffers: AnalysedBuffers
    varied: Varied
    fits_memory: Callable[[Arguments], bool]
    key: str
    strategy: Strategy = Strategy.DECOUPLED

    @property
    def allows(self) -> Callable[[Shape], bool]:
        """Tells whether the kernel's own arrays are large enough for a local size."""
        return self.buffers.analysis.allows

    def arguments(self, global_size: Shape, local_size: Shape) -> Arguments:
        """Return drawn scalars, and buffers that follow from them and the NDRange."""
        draws = Draws(content_id("decoupled", [self.key, list(global_size)]))
        drawn = [(one, draws.unit()) for one in scalar_arguments(self.buffers.signature)]
        floats_vary = all(extent.validated for extent in self.buffers.analysis.extents)
        variation = self.varied.at(global_size)

        def with_limit(limit: int) -> Arguments:
            values = {
                one.position: drawn_float(at)
                if floats_vary and is_float_scalar(one)
                else drawn_value(one, global_size, at, limit)
                for one, at in drawn
            }
            values |= variation.scalars
            return self.buffers.arguments(global_size, local_size, values, variation.contents)

        return _first_that_fits(with_limit, DRAWN_LOOP_LIMITS, self.fits_memory)


def _first_that_fits(
    with_limit: Callable[[int], Arguments],
    limits: Sequence[int],
    fits_memory: Callable[[Arguments], bool],
) -> Arguments:
    """Return the arguments for the first limit whose buffers fit, else those for the last limit."""
    arguments: Arguments = ()
    for limit in limits:
        previous, arguments = arguments, with_limit(limit)
        if arguments == previous or fits_memory(arguments):
            break  # no scalar depends on the limit, so a lower limit cannot help
    return arguments


def rules_for(
    kernel: Kernel,
    signature: Signature,
    device_class: DeviceClass,
    config: PlanConfig,
    analysis: Analysis | None,
) -> tuple[InputRule, ...]:
    """Return the rules for the wanted strategies, or for simpler ones, each once and in order."""
    strategies = tuple(
        dict.fromkeys(_possible(signature, one, analysis) for one in config.strategies)
    )
    return tuple(
        _rule(kernel, signature, device_class, config, analysis, one) for one in strategies
    )


def completing_rule(
    kernel: Kernel,
    device_class: DeviceClass,
    config: PlanConfig,
    analysis: Analysis | None,
    given: Mapping[int, Number],
) -> InputRule:
    """Return the rule that completes launches in which a user has fixed some arguments.

    It is the memory-analysis rule, or the simple rule if the analysis does not suffice, as in
    ``collect``. Fixed arguments are kept, and the missing ones follow from them.

    Args:
        kernel: the kernel with its signature.
        device_class: the class of the device on which the launches run.
        config: the plan configuration, whose caps apply.
        analysis: the kernel's memory analysis, if any.
        given: by position, the elements of a buffer or the value of a scalar.
    """
    assert kernel.signature is not None, "a kernel without signature cannot be launched"
    strategy = _possible(kernel.signature, Strategy.MEMORY_ANALYSIS, analysis)
    return _rule(kernel, kernel.signature, device_class, config, analysis, strategy, given)


def trial_rule(signature: Signature, analysis: Analysis, choice: InputChoice) -> InputRule | None:
    """Return the rule of ``rules_for`` with one choice of inputs at every global size.

    It is the memory-analysis rule, or the simple rule for the usual inputs of a kernel without
    forms. The rule depends on no device. The result is None if the analysis failed.
    """
    if analysis.failure:
        return None
    analysis = replace(analysis, inputs=choice)
    if _possible(signature, Strategy.MEMORY_ANALYSIS, analysis) is Strategy.SIMPLE:
        return SimpleRule(signature=signature, allows=analysis.allows)
    return MemoryAnalysisRule(
        buffers=AnalysedBuffers(
            signature=signature, analysis=analysis, max_launch_bytes=_TRIAL_BYTES
        ),
        varied=ChosenInputs(signature=signature, choice=choice),
        fits_memory=lambda arguments: sum(buffer_bytes(signature, arguments)) <= _TRIAL_BYTES,
    )


def needs_analysis(strategies: Sequence[Strategy]) -> bool:
    """Return whether one of these strategies needs a memory analysis."""
    return any(one is not Strategy.SIMPLE for one in strategies)


def _possible(signature: Signature, wanted: Strategy, analysis: Analysis | None) -> Strategy:
    """Return ``wanted``, or the next simpler strategy for which the analysis suffices."""
    if wanted is Strategy.SIMPLE or analysis is None or analysis.failure:
        return Strategy.SIMPLE
    if not _has_forms(signature, analysis) and not _has_chosen_inputs(analysis):
        return Strategy.SIMPLE
    if wanted is Strategy.DECOUPLED and not _can_decouple(signature, analysis):
        return Strategy.MEMORY_ANALYSIS
    return wanted


def _has_chosen_inputs(analysis: Analysis) -> bool:
    """Return whether inputs were chosen. They were tried in buffers of the simple rule's sizes."""
    return analysis.inputs is not None and not analysis.inputs.is_plain


def _has_forms(signature: Signature, analysis: Analysis) -> bool:
    pointers = [one.position for one in signature.arguments if one.kind.is_buffer]
    known = _known_positions(analysis)
    return not pointers or any(position in known for position in pointers)


def _can_decouple(signature: Signature, analysis: Analysis) -> bool:
    """Return whether the kernel has scalars, and every buffer a form, so that scalars may vary.

    A buffer without a form has the simple rule's elements, which are enough only while every scalar
    equals the global size.
    """
    known = _known_positions(analysis)
    pointers = [one.position for one in signature.arguments if one.kind.is_buffer]
    return bool(integer_scalars(signature)) and all(position in known for position in pointers)


def _known_positions(analysis: Analysis) -> frozenset[int]:
    """Return the positions of buffers that have a form, or that index values point into."""
    with_form = {one.position for one in analysis.extents if one.form is not None}
    targets = {one.position for role in analysis.index_roles for one in role.targets}
    return frozenset(with_form | targets)


def _rule(
    kernel: Kernel,
    signature: Signature,
    device_class: DeviceClass,
    config: PlanConfig,
    analysis: Analysis | None,
    strategy: Strategy,
    given: Mapping[int, Number] | None = None,
) -> InputRule:
    if strategy is Strategy.SIMPLE:
        if analysis is None or not needs_analysis(config.strategies):
            return SimpleRule(signature=signature, given=given or {})
        return SimpleRule(signature=signature, allows=analysis.allows, given=given or {})
    assert analysis is not None, "only the simple strategy can plan without an analysis"
    buffers = AnalysedBuffers(
        signature=signature,
        analysis=analysis,
        max_launch_bytes=min(
            config.max_launch_bytes,
            device_class.global_memory_bytes,
            device_class.max_allocation_bytes,
        ),
        given=given or {},
    )

    def fits_memory(arguments: Arguments) -> bool:
        return fits(signature, arguments, device_class, config)

    varied = VariedInputs(
        signature=signature,
        analysis=analysis,
        key=content_id("inputs_of", [kernel.kernel_id, config.seed]),
        plain_share=config.plain_share,
    )
    if strategy is Strategy.MEMORY_ANALYSIS:
        return MemoryAnalysisRule(buffers=buffers, varied=varied, fits_memory=fits_memory)
    key = content_id("launch_values", [kernel.kernel_id, device_class.name, config.seed])
    return DecoupledRule(buffers=buffers, varied=varied, fits_memory=fits_memory, key=key)
