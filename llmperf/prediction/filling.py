"""Fill the missing arguments of a launch as the planner of ``collect`` does, and warn of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmperf.prediction.analysing import Known
from llmperf_common.analysis import launch_sizes
from llmperf_common.launch import MOST_ELEMENTS, is_integer_scalar
from llmperf_common.records import (
    Argument,
    ArgumentKind,
    Device,
    Kernel,
    LaunchArgument,
    Signature,
    SizeRole,
    Strategy,
)
from trainer.prediction.arguments import Filled
from workers.config import PlanConfig
from workers.device.device_class import device_class_of
from workers.plan.strategies.buffers import extent_elements
from workers.plan.strategies.rules import InputRule, completing_rule
from workers.plan.strategies.scalars import (
    MOST_LANES,
    chosen_value,
    guarded_axis,
    is_row_length,
)

Sizes = tuple[int, ...]
_PLAN = PlanConfig()
_DRAWN_TEXT = "drawn at random: it changes the result, not the work of the launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiller:
    """The ``Filler`` of one kernel on one device class."""

    signature: Signature
    given: Mapping[int, int | float]
    known: Known
    rule: InputRule

    def fill(self, global_size: Sizes, local_size: Sizes) -> Filled:
        """Return all arguments of one launch; missing arguments are planned as in ``collect``."""
        args = tuple(map(_possible, self.rule.arguments(global_size, local_size)))
        missing = [
            (declared, one)
            for declared, one in zip(self.signature.arguments, args, strict=True)
            if one.position not in self.given
        ]
        warnings = [
            f"argument {declared.name!r} not given: using "
            + (f"{one.elements} elements" if declared.kind.is_buffer else f"value {one.value}")
            + f" ({self._rule_text(declared, one, global_size)})"
            for declared, one in missing
        ]
        if any(declared.kind.is_buffer for declared, _ in missing):
            warnings.append(self._source_text())
        warnings += self._overrun(args, global_size, local_size)
        return Filled(args=args, warnings=tuple(warnings))

    def allows(self, local_size: Sizes) -> bool:
        """Whether the kernel's arrays of fixed size suffice for a local size; true if unknown."""
        return self.rule.allows(local_size)

    @property
    def _is_analysed(self) -> bool:
        return self.rule.strategy is not Strategy.SIMPLE

    def _source_text(self) -> str:
        if self._is_analysed:
            return (
                "missing arguments get the values that `llmperf collect` would use, based on "
                f"{self.known.said}"
            )
        why = f": {self.known.said}" if self.known.said else ""
        return (
            "missing buffers are as large as the NDRange, because the kernel's memory accesses are "
            f"not known{why}; give the number of elements of each buffer with --arg"
        )

    def _rule_text(self, argument: Argument, filled: LaunchArgument, global_size: Sizes) -> str:
        if argument.kind is ArgumentKind.SCALAR:
            return self._scalar_text(argument, filled, global_size)
        analysis = self.known.analysis
        if self._is_analysed and analysis is not None:
            extent = analysis.extent(argument.position)
            if extent is not None and extent.form is not None:
                return "the extent that the memory analysis found"
            for role in analysis.index_roles:
                if argument.position in {target.position for target in role.targets}:
                    name = self.signature.arguments[role.position].name
                    return f"indexed by the values of {name!r}"
        if argument.kind is ArgumentKind.LOCAL_BUFFER:
            return "one element per work-item of a work-group"
        return "the global size"

    def _scalar_text(self, argument: Argument, filled: LaunchArgument, global_size: Sizes) -> str:
        if not is_integer_scalar(argument.scalar_type):
            is_usual = filled.value == 1.0
            return "the default of a floating-point scalar" if is_usual else _DRAWN_TEXT
        return self._integer_text(argument, filled, global_size)

    def _integer_text(self, argument: Argument, filled: LaunchArgument, global_size: Sizes) -> str:
        if not self._is_analysed:
            return "the global size"
        if self._is_chosen(argument, filled, global_size):
            return "chosen so that more work-items do work"
        axis = guarded_axis(argument, global_size)
        if axis is not None:
            return (
                f"the global size of dimension {axis}, because the kernel compares the argument "
                "with the id of that dimension"
            )
        if is_row_length(argument, global_size):
            return "the length of a row: the global size of dimension 0"
        if argument.size_role is SizeRole.LANES:
            return f"{MOST_LANES}, because it divides a work-group into parts"
        return "the global size, but limited, because it may be the length of a loop"

    def _is_chosen(self, argument: Argument, filled: LaunchArgument, global_size: Sizes) -> bool:
        inputs = self.known.analysis.inputs if self.known.analysis is not None else None
        choice = inputs.of_scalar(argument.position) if inputs is not None else None
        if choice is None:
            return False
        return filled.value == chosen_value(argument, global_size, choice)

    def _overrun(
        self, args: tuple[LaunchArgument, ...], global_size: Sizes, local_size: Sizes
    ) -> list[str]:
        """Return a warning for each given buffer that is smaller than its validated extent."""
        analysis = self.known.analysis
        if analysis is None:
            return []
        declared = {one.position: one for one in self.signature.arguments}
        scalars = {
            declared[one.position].name: one.value or 0
            for one in args
            if one.kind is ArgumentKind.SCALAR
            and is_integer_scalar(declared[one.position].scalar_type)
        }
        sizes = launch_sizes(global_size, local_size, scalars)
        found = []
        for one in args:
            extent = analysis.extent(one.position) if one.position in self.given else None
            reach = extent_elements(extent, sizes)
            if extent is None or reach is None or not extent.validated:
                continue
            if reach > (one.elements or 0):
                found.append(
                    f"buffer {declared[one.position].name!r} has {one.elements} elements, "
                    f"but the launch accesses {reach}"
                )
        return found


def planned_filler(
    kernel: Kernel, device: Device, given: Mapping[int, int | float], known: Known
) -> PlannedFiller:
    """Return a filler that completes launches of ``kernel`` on ``device``.

    Args:
        kernel: the kernel, with its signature.
        device: the device of the launches.
        given: a mapping from argument position to the checked number of elements (buffer) or value
            (scalar).
        known: the kernel's memory analysis.
    """
    assert kernel.signature is not None, "a kernel without signature is refused before"
    return PlannedFiller(
        signature=kernel.signature,
        given=given,
        known=known,
        rule=completing_rule(kernel, device_class_of(device), _PLAN, known.analysis, given),
    )


def _possible(one: LaunchArgument) -> LaunchArgument:
    """Return the argument with its elements limited to ``MOST_ELEMENTS``."""
    if one.elements is None or one.elements <= MOST_ELEMENTS:
        return one
    return replace(one, elements=MOST_ELEMENTS)
