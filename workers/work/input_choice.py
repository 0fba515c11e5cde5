"""Choose inputs that make many work-items of a kernel active: scalars and buffer contents.

Owns the candidates, their order and the choice. Each candidate runs in a virtual launch. With a
chosen candidate, the kernel must also access no memory outside its planned buffers. Runs in the
calling process, which a kernel may crash. ``workers/plan/strategies/varied.py`` plans with the
choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from llmperf_common.analysis import (
    Analysis,
    ChosenScalar,
    Contents,
    ContentsRule,
    InputChoice,
    ScalarChoice,
)
from llmperf_common.failures import Failure
from llmperf_common.features.activity import FEW_SHARE
from llmperf_common.records import Kernel, LaunchConfig, Signature
from workers.analysis.planned_access import planned_access_ranges
from workers.device.interface import Prober
from workers.plan.launch_plan import seed_of
from workers.plan.ndranges import Shape
from workers.plan.strategies.rules import trial_rule
from workers.plan.strategies.scalars import (
    integer_scalars,
    is_float_scalar,
    scalar_arguments,
)
from workers.plan.strategies.varied import SIGNED
from workers.work.counting import count_kernel
from workers.work.opencl_virtual import OpenclVirtualDevice

MOST_TRIED = 32
"""Maximum candidates tried for a kernel. A trial takes milliseconds once the copy is built."""
ENOUGH_SHARE = 0.4
"""Share of active work-items that is good enough: the first candidate with such a share is chosen.
"""
CHOICE_NS = 1.75e8
"""Maximum estimated time of all candidates together, in ns: a quarter of ``KERNEL_NS``."""
_MUCH_MORE = 2
"""Factor by which a candidate must have more active work-items than the usual inputs. If none is
active with the usual inputs, any active work-item is better."""
_MOST_CHECKED = 3
"""Maximum candidates, the best first, that are checked for accesses outside their buffers."""
_MOST_ALONE = 6
"""Number of scalars that are changed one at a time; all further scalars change only together."""
_FLAGS = Contents(rule=ContentsRule.FLAGS, limit=2)
_STATES = Contents(rule=ContentsRule.FLAGS, limit=4)
_TRIED_SIZE: dict[int, Shape] = {1: (65_536,), 2: (512, 256), 3: (64, 64, 32)}
_CHECKED_SIZES: dict[int, tuple[Shape, ...]] = {
    1: ((256,), (512,), (1024,), (8192,), (32_768,)),
    2: ((64, 32), (96, 128), (256, 128)),
    3: ((16, 8, 8), (16, 32, 16), (64, 32, 16)),
}
"""Global sizes of the launches that check accesses. The smallest come first, because the check ends
at a launch whose loops run too long."""
_FEWEST_COMPLETE = 2
"""Minimum number of these launches whose loops must end by themselves. If a kernel's work-items
loop over rows, the loops of larger launches run too long."""
_LOCAL_SIZES: dict[int, tuple[Shape, ...]] = {
    1: ((64,), (32,), (16,), (1,)),
    2: ((16, 16), (8, 8), (4, 4), (1, 1)),
    3: ((8, 8, 4), (4, 4, 4), (2, 2, 2), (1, 1, 1)),
}


def choose_inputs(
    kernel: Kernel,
    analysis: Analysis,
    prober: Prober,
    device: OpenclVirtualDevice,
    *,
    without_barriers: bool = False,
) -> InputChoice:
    """Return the inputs that make the most work-items of a kernel active.

    The usual inputs are chosen if enough work-items are active with them, if nothing can be changed
    or counted, or if no candidate helps. Then ``reason`` says why, unless enough work-items are
    active. A pure function of kernel and analysis.

    Args:
        kernel: a kernel with a signature.
        analysis: the kernel's analysis.
        prober: the prober of a CPU device, which shows whether accesses stay within buffers.
        device: the same device, for virtual launches.
        without_barriers: whether the analysis left the barriers out.

    Raises:
        DeviceFailure: The device's context was lost (sticky); its process can run nothing more.
    """
    assert kernel.signature is not None, "a kernel without signature is not analysed"
    usual = analysis.with_usual_inputs().inputs
    assert usual is not None, "it was just given"
    trials = _Trials(kernel, kernel.signature, analysis)
    candidates = trials.candidates(usual)
    if not candidates:
        return usual
    choices = [usual, *candidates]
    shares, why_not = trials.active_shares(choices, device)
    if why_not:
        return replace(usual, reason=why_not)
    usual = replace(usual, num_tried=len(shares) - 1, plain_share=shares[0])
    if len(shares) == 1:
        return usual
    least = max(_MUCH_MORE * shares[0], FEW_SHARE) if shares[0] else 0.0
    better = [index for index, share in enumerate(shares) if share > least]
    # First the candidates that are good enough, in their order; then the others, the best first.
    better.sort(key=lambda index: (-min(shares[index], ENOUGH_SHARE), index))
    if not better:
        return replace(usual, reason="no candidate makes many more work-items active")
    for index in better[:_MOST_CHECKED]:
        one = choices[index]
        if trials.stays_within_buffers(one, prober, without_barriers=without_barriers):
            share = shares[index]
            return replace(usual, scalars=one.scalars, contents=one.contents, active_share=share)
    return replace(
        usual, reason="the best candidates access memory outside their buffers, or run too long"
    )


class _Trials:
    """The launches that try the candidates of one kernel."""

    def __init__(self, kernel: Kernel, signature: Signature, analysis: Analysis) -> None:
        self._kernel, self._signature, self._analysis = kernel, signature, analysis
        self._local_size = _local_size(signature, analysis)

    def candidates(self, usual: InputChoice) -> list[InputChoice]:
        """Return the candidates in order; each gives the launch different arguments."""
        if trial_rule(self._signature, self._analysis, usual) is None:
            return []
        size = _TRIED_SIZE[self._signature.dims]
        known = {self.config(usual, size).args}
        found: list[InputChoice] = []
        for one in _candidates(self._signature, usual):
            arguments = self.config(one, size).args
            if arguments not in known:
                known.add(arguments)
                found.append(one)
        return found[:MOST_TRIED]

    def config(self, choice: InputChoice, size: Shape) -> LaunchConfig:
        """Return a launch with about the given global size."""
        rule = trial_rule(self._signature, self._analysis, choice)
        assert rule is not None, "no candidates without it"
        local = self._local_size
        sides = tuple(-(-side // least) * least for side, least in zip(size, local, strict=True))
        return LaunchConfig(
            sample_id="",
            global_size=sides,
            local_size=local,
            args=rule.arguments(sides, local),
            regime=None,
            strategies=(rule.strategy,),
            seed=seed_of(["choice", self._kernel.kernel_id]),
        )

    def active_shares(
        self, choices: Sequence[InputChoice], device: OpenclVirtualDevice
    ) -> tuple[list[float], str]:
        """Return the share of active work-items for each tried choice, or why there is none.

        Stops when as many choices are good enough as are checked for accesses, because each may be
        rejected. A later choice that cannot be counted has share 0.
        """
        size = _TRIED_SIZE[self._signature.dims]
        configs = [self.config(one, size) for one in choices]
        items = math.prod(configs[0].global_size)
        shares: list[float] = []
        with closing(
            count_kernel(self._kernel, configs, device, without_barriers=True, time_ns=CHOICE_NS)
        ) as outcomes:
            for outcome in outcomes:
                if isinstance(outcome, Failure):
                    if not shares:
                        return [], f"usual inputs cannot be counted: {outcome.detail}"
                    shares.append(0.0)
                    continue
                shares.append(min(1.0, outcome.active_items / items))  # a sum of weights is rounded
                if len(shares) == 1 and shares[0] > FEW_SHARE:
                    break
                if sum(share > ENOUGH_SHARE for share in shares) == _MOST_CHECKED:
                    break
        return shares, ""

    def stays_within_buffers(
        self, choice: InputChoice, prober: Prober, *, without_barriers: bool
    ) -> bool:
        """Whether launches of several sizes access only bytes inside their buffers."""
        configs = [self.config(choice, size) for size in _CHECKED_SIZES[self._signature.dims]]
        if any(_has_row_offsets(one) for one in configs):
            return False  # row offsets must ascend, but contents of probes do not
        records = planned_access_ranges(
            self._kernel, configs, prober, without_barriers=without_barriers
        )
        num_complete = 0
        for config, record in zip(configs, records, strict=False):  # no records of some kernels
            if record is None:
                break
            if record.overflow:
                return False
            for accessed in record.access_ranges:
                planned_bytes = (config.args[accessed.position].elements or 0) * max(
                    1, self._signature.arguments[accessed.position].element_bytes
                )
                if accessed.start_bytes < 0 or accessed.end_bytes > planned_bytes:
                    return False
            if record.exceeded:
                break
            num_complete += 1
        return num_complete >= _FEWEST_COMPLETE


def _candidates(signature: Signature, usual: InputChoice) -> Iterator[InputChoice]:
    scalars = [one.position for one in integer_scalars(signature)]
    floats = [one.position for one in scalar_arguments(signature) if is_float_scalar(one)]
    if usual.floats_free:
        floats = []  # they change no index and no loop
    yield replace(usual, contents=_FLAGS)
    yield replace(usual, contents=SIGNED)
    for value in (ScalarChoice.LOW, ScalarChoice.HIGH, ScalarChoice.ZERO):
        for position in scalars[:_MOST_ALONE]:
            yield _with(usual, [position], value)
        yield _with(usual, scalars, value)
    yield replace(usual, contents=_STATES)
    for role in dict.fromkeys(one.size_role for one in integer_scalars(signature)):
        alike = [one.position for one in integer_scalars(signature) if one.size_role is role]
        yield _with(usual, alike, ScalarChoice.LOW)
    if floats:
        yield _with(usual, floats, ScalarChoice.SIDE)
    yield _with(usual, [*scalars, *floats], ScalarChoice.ROOT)
    for value in (ScalarChoice.LOW, ScalarChoice.ZERO):
        yield replace(_with(usual, scalars, value), contents=_FLAGS)


def _with(usual: InputChoice, positions: Sequence[int], value: ScalarChoice) -> InputChoice:
    return replace(
        usual, scalars=tuple(ChosenScalar(position=one, value=value) for one in positions)
    )


def _local_size(signature: Signature, analysis: Analysis) -> Shape:
    dims = signature.dims
    if signature.required_local_size is not None:
        return (*signature.required_local_size, 1, 1)[:dims]
    return next((one for one in _LOCAL_SIZES[dims] if analysis.allows(one)), (1,) * dims)


def _has_row_offsets(config: LaunchConfig) -> bool:
    return any(one.contents and one.contents.rule is ContentsRule.PREFIX for one in config.args)
