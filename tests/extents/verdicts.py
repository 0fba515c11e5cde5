"""What an analysis is worth: its claims about one case against the truths, at the launches that plans make.

Owns the launches, the names by which truths read them, and the verdict on each pair of kernel and argument.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import tests.extents.cases
from llmperf_common.analysis import Analysis, Extent, launch_sizes
from llmperf_common.records import Argument, DeviceClass, Kernel, LaunchConfig, Strategy
from tests.extents.case import Case, Sizes, Truth
from tests.support.reading import kernels_from_source
from workers.config import PlanConfig
from workers.plan.launch_plan import plan_configs

SMALL_CPU = DeviceClass(
    name="small_cpu", compute_units=2, max_work_group_size=4096, max_work_item_sizes=(4096, 4096, 4096),
    max_allocation_bytes=2**32, global_memory_bytes=2**34, local_memory_bytes=2**20, plain_work_group_size=1024,
)  # fmt: skip
LARGE_GPU = DeviceClass(
    name="large_gpu", compute_units=132, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64),
    max_allocation_bytes=37 * 2**30, global_memory_bytes=139 * 2**30, local_memory_bytes=48 * 2**10,
)  # fmt: skip
STRATEGIES = (Strategy.MEMORY_ANALYSIS, Strategy.DECOUPLED)
LEAST_SANE = 5
"""Integers passed by value are sizes; a launch that has a smaller one says nothing of an extent."""
_SHORT_NAMES = {"global_size_": "g", "local_size_": "l", "num_groups_": "n"}


class Verdict(StrEnum):
    """What the claim about one pair is worth."""

    EXACT = "exact"
    BOUND = "bound"
    UNRESOLVED = "unresolved"
    BROKEN_BOUND = "broken_bound"
    TOO_SMALL = "too_small"
    TOO_LARGE = "too_large"


WRONG_VERDICTS = frozenset({Verdict.TOO_SMALL, Verdict.TOO_LARGE})
"""A validated claim that a planned launch refutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One pair of kernel and argument.

    ``planned_short``: the first planned launch, "" if none, whose buffer ends before the kernel does.
    """

    verdict: Verdict
    detail: str
    planned_short: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    config: LaunchConfig
    sizes: dict[str, int]
    scalars: dict[str, int]

    @property
    def is_sane(self) -> bool:
        return min(self.scalars.values(), default=LEAST_SANE) >= LEAST_SANE

    def told(self) -> str:
        one = self.config
        return f"global {one.global_size}, local {one.local_size}, {self.scalars}"


def all_cases() -> tuple[Case, ...]:
    """Return the cases of every module of this folder, by name.

    Raises:
        ValueError: Two cases have one name.
    """
    modules = [
        importlib.import_module(f"{tests.extents.cases.__name__}.{one.name}")
        for one in pkgutil.iter_modules(tests.extents.cases.__path__)
    ]
    found: dict[str, Case] = {}
    for case in [case for module in modules for case in getattr(module, "CASES", ())]:
        if case.name in found:
            raise ValueError(f"two cases have the name {case.name}")
        found[case.name] = case
    return tuple(found[name] for name in sorted(found))


def kernel_of(case: Case) -> Kernel:
    """Return the kernel as a corpus holds it."""
    (kernel,) = (one for one in kernels_from_source(case.source) if one.name == case.name)
    assert kernel.failure is None, kernel.failure
    return kernel


def judge(
    case: Case, kernel: Kernel, analysis: Analysis, *, samples: int = 120
) -> dict[str, Finding]:
    """Hold the claims about one kernel against its truths; by argument name.

    Args:
        case: with the truths; an argument without one is not judged.
        kernel: as ``kernel_of`` makes it.
        analysis: of that kernel.
        samples: launches planned for each strategy on each device class.
    """
    assert kernel.signature is not None
    by_name = {one.name: one for one in kernel.signature.arguments}
    launches = list(_launches(kernel, analysis, samples))
    return {
        name: _finding(by_name[name], analysis, truth, launches)
        for name, truth in case.truths.items()
    }


def _launches(kernel: Kernel, analysis: Analysis, samples: int) -> Iterable[_Launch]:
    assert kernel.signature is not None
    arguments = kernel.signature.arguments
    for device_class in (SMALL_CPU, LARGE_GPU):
        for strategy in STRATEGIES:
            config = PlanConfig(strategies=(strategy,), samples_per_kernel=samples)
            for planned in plan_configs(kernel, device_class, config, analysis):
                values = {
                    arguments[one.position].name: one.value
                    for one in planned.args
                    if one.value is not None
                }
                scalars = {name: value for name, value in values.items() if isinstance(value, int)}
                sizes = launch_sizes(planned.global_size, planned.local_size, values)
                yield _Launch(config=planned, sizes=sizes, scalars=scalars)


def _finding(
    argument: Argument, analysis: Analysis, truth: Truth, launches: Sequence[_Launch]
) -> Finding:
    extent = analysis.extent(argument.position)
    assert extent is not None, argument.name
    small = large = short = ""
    for launch in launches:
        if not launch.is_sane:
            continue
        true = truth(_readable(launch.sizes))
        planned = launch.config.args[argument.position].elements
        if not short and planned is not None and planned < true:
            short = f"{planned} elements, {true} touched: {launch.told()}"
        claimed = extent.elements(launch.sizes)
        if claimed is None or claimed == true:
            continue
        told = f"{claimed} claimed, {true} touched: {launch.told()}"
        if claimed < true:
            small = small or told
        else:
            large = large or told
    verdict, detail = _verdict(extent, small, large)
    return Finding(verdict=verdict, detail=detail, planned_short=short)


def _verdict(extent: Extent, small: str, large: str) -> tuple[Verdict, str]:
    if extent.form is None:
        return Verdict.UNRESOLVED, extent.reason
    if not extent.validated:
        return (Verdict.BROKEN_BOUND, small) if small else (Verdict.BOUND, large or extent.reason)
    if small:
        return Verdict.TOO_SMALL, small
    return (Verdict.TOO_LARGE, large) if large else (Verdict.EXACT, "")


def _readable(sizes: dict[str, int]) -> Sizes:
    short = {
        letter + str(axis): sizes[stem + str(axis)]
        for stem, letter in _SHORT_NAMES.items()
        for axis in range(3)
    }
    return Sizes(**(sizes | short))
