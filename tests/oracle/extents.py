"""Checks extents with Oclgrind: exactly that many elements are enough, one fewer is not.

Owns the trials and their verdict. Extents come from the side files or from an analysis; the simulator
knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from llmperf_common.analysis import Analysis
from llmperf_common.records import Signature
from tests.oracle.oclgrind import Program, out_of_bounds
from tests.support.reading import read_signatures
from tests.support.truth.side_files import (
    RUN_RANGES,
    Launch,
    SideKernel,
    extent_elements,
    random_launches,
)

_SPARE_ELEMENTS = 64
_MOST_ELEMENTS = 40_000

ExtentRule = Callable[[SideKernel, int, Launch], int | None]
"""The elements of the argument at a position for one launch; None where nothing is claimed."""


class Reach(StrEnum):
    """What the simulator says of one claimed extent."""

    EXACT = "exact"
    TOO_SMALL = "too_small"
    TOO_LARGE = "too_large"
    NO_CLAIM = "no_claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One pointer argument of one kernel over all its launches."""

    kernel: str
    argument: str
    position: int
    reach: Reach
    num_launches: int
    num_shortened: int
    """Launches that were repeated with one element fewer: those that touch the buffer at all."""
    detail: str = ""


def of_side_file(kernel: SideKernel, position: int, launch: Launch) -> int | None:
    """Claim what the side file says."""
    extent = next(one for one in kernel.extents if one["position"] == position)
    return extent_elements(extent, launch.sizes)


def of_analyses(analyses: Mapping[str, Analysis], *, validated_only: bool = True) -> ExtentRule:
    """Claim what an analysis says, by kernel name; by default only what it calls validated."""

    def claim(kernel: SideKernel, position: int, launch: Launch) -> int | None:
        extent = analyses[kernel.name].extent(position) if kernel.name in analyses else None
        if extent is None or (validated_only and not extent.validated):
            return None
        return extent.elements(launch.sizes)

    return claim


@cache
def _signatures(source: Path) -> dict[str, Signature]:
    found = read_signatures(source.read_text(encoding="utf-8"))
    signatures: dict[str, Signature] = {}
    for one in found:
        if one.signature is None:
            raise ValueError(f"{source.name}: {one.name}: {one.failure}")
        signatures[one.name] = one.signature
    return signatures


def check_kernel(
    kernel: SideKernel, rule: ExtentRule = of_side_file, *, num_launches: int, seed: int = 0
) -> list[Finding]:
    """Run one kernel with buffers of exactly the claimed extent, then each with one element fewer.

    Raises:
        OracleError: Oclgrind could not run a launch.
        ValueError: The source has no signature, or no small launch meets the kernel's contract.
    """
    arguments = _signatures(kernel.source)[kernel.name].arguments
    program = Program(source=kernel.source, name=kernel.name, arguments=arguments)
    trials = [
        _Trial(kernel, rule, launch) for launch in _small_launches(kernel, num_launches, seed)
    ]
    return [
        _finding(program, trials, extent["position"], extent["argument"], seed)
        for extent in kernel.extents
    ]


def _small_launches(kernel: SideKernel, count: int, seed: int) -> list[Launch]:
    launches = random_launches(kernel, count=20 * count, seed=seed, ranges=RUN_RANGES)
    small = [
        launch
        for launch in launches
        if all(
            (of_side_file(kernel, e["position"], launch) or 0) <= _MOST_ELEMENTS
            for e in kernel.extents
        )
    ]
    if len(small) < count:
        raise ValueError(f"{kernel.name}: {len(small)} small launches, {count} wanted")
    return small[:count]


class _Trial:
    """One launch with what is claimed of it, and whether all claims together are enough."""

    def __init__(self, kernel: SideKernel, rule: ExtentRule, launch: Launch) -> None:
        self.launch = launch
        self.claims = {e["position"]: rule(kernel, e["position"], launch) for e in kernel.extents}
        truths = [of_side_file(kernel, position, launch) for position in self.claims]
        spare = max([*launch.sizes.values(), *(one or 0 for one in truths)]) + _SPARE_ELEMENTS
        self.spare = dict.fromkeys(self.claims, spare)
        self.exact = {
            position: spare if claim is None else claim for position, claim in self.claims.items()
        }
        self._all_enough: bool | None = None

    def is_enough(self, program: Program, position: int, seed: int) -> str:
        """Return the access beyond the claim on one buffer, "" if there is none."""
        if self._all_enough is None:
            self._all_enough = not out_of_bounds(program, self.launch, self.exact, seed=seed)
        if self._all_enough:
            return ""
        alone = self.spare | {position: self.exact[position]}
        return out_of_bounds(program, self.launch, alone, seed=seed)

    def is_needed(self, program: Program, position: int, seed: int) -> bool:
        """Whether one element fewer in one buffer, the others with room to spare, is missed."""
        fewer = self.spare | {position: self.exact[position] - 1}
        return bool(out_of_bounds(program, self.launch, fewer, seed=seed))


def _finding(
    program: Program, trials: Sequence[_Trial], position: int, argument: str, seed: int
) -> Finding:
    reach, detail, num_claims, num_shortened = Reach.NO_CLAIM, "", 0, 0
    for trial in trials:
        claim = trial.claims[position]
        if claim is None:
            continue
        num_claims += 1
        reach = Reach.EXACT if reach is Reach.NO_CLAIM else reach
        beyond = trial.is_enough(program, position, seed)
        if beyond:
            return _wrong(program, trial, position, argument, Reach.TOO_SMALL, beyond)
        if claim > 0:
            num_shortened += 1
            if not trial.is_needed(program, position, seed):
                return _wrong(program, trial, position, argument, Reach.TOO_LARGE, "")
    return Finding(
        kernel=program.name,
        argument=argument,
        position=position,
        reach=reach,
        num_launches=num_claims,
        num_shortened=num_shortened,
        detail=detail,
    )


def _wrong(
    program: Program, trial: _Trial, position: int, argument: str, reach: Reach, report: str
) -> Finding:
    place = (
        f"{trial.claims[position]} elements, global {trial.launch.global_size},"
        f" local {trial.launch.local_size}, {trial.launch.scalars}"
    )
    return Finding(
        kernel=program.name,
        argument=argument,
        position=position,
        reach=reach,
        num_launches=1,
        num_shortened=0 if reach is Reach.TOO_SMALL else 1,
        detail=f"{place}\n{report}".strip(),
    )
