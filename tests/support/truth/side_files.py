"""The side files of kernels/: hand-derived extents, launches for which they hold, and comparison.

Owns reading ``NAME.toml``, the parameters as the source writes them, random launches within a
kernel's contract, and the verdict on an analysis. Evaluates the polynomials itself, because an
oracle shares no code with the code that it judges.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from llmperf_common.analysis import Analysis, Extent

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
SIZE_NAMES = frozenset(
    f"{stem}_{dim}" for stem in ("global_size", "local_size", "num_groups") for dim in range(3)
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"#define\s+(\w+)\s+(\d+)\s*$", re.MULTILINE)
_DEFINITION = re.compile(
    r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(\s*(.*?)\)\)\s*)?void\s+(\w+)\s*\(([^)]*)\)",
    re.DOTALL,
)
_MOST_TRIES = 20_000
_WIDEST_LANES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A kernel parameter as written; the address space of a scalar is None."""

    name: str
    space: str | None
    is_float: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kernel as the source writes it."""

    parameters: tuple[Parameter, ...]
    required_local_size: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideKernel:
    """One ``[[kernel]]`` table with the source that it describes."""

    source: Path
    table: dict[str, Any]

    @property
    def stem(self) -> str:
        return self.source.stem

    @property
    def name(self) -> str:
        return str(self.table["name"])

    @property
    def dims(self) -> int:
        return int(self.table["dims"])

    @property
    def is_data_dependent(self) -> bool:
        return bool(self.table["data_dependent"])

    @property
    def extents(self) -> list[dict[str, Any]]:
        return list(self.table["extent"])

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return read_source(self.source)[self.name].parameters

    @property
    def required_local_size(self) -> tuple[int, ...] | None:
        return read_source(self.source)[self.name].required_local_size

    def accepts(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a launch meets ``requires``, so that the extents hold for it."""
        return all(
            eval(condition, {"__builtins__": {}}, dict(sizes))
            for condition in self.table["requires"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One NDRange with the values of the integer scalars."""

    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    scalars: dict[str, int]

    @property
    def sizes(self) -> dict[str, int]:
        """The value of every name that a polynomial may use."""
        return sizes_of(self.global_size, self.local_size) | self.scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Upper limits of random launches: work-items of a group, work-groups, values of scalars."""

    max_lanes: int
    max_groups: int
    max_scalar: int


FORM_RANGES = Ranges(max_lanes=256, max_groups=4096, max_scalar=1 << 20)
"""For comparisons of polynomials, in which nothing runs."""
RUN_RANGES = Ranges(max_lanes=16, max_groups=6, max_scalar=300)
"""For launches that a simulator runs."""


class Verdict(StrEnum):
    """The result of an analysis for one pointer argument, compared with the side file."""

    EXACT = "exact"
    """Equal to the true values on every launch."""
    BOUND = "bound"
    """Never below the true values, not always equal, and not marked validated."""
    MISSING = "missing"
    """The side file has a form, but the analysis has none."""
    WRONG = "wrong"
    """Below a true value; or validated and not equal, or validated although no form exists."""
    NO_FORM = "no_form"
    """The side file has no form, and the analysis claims none; it may have a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The verdict on one pointer argument of one kernel."""

    kernel: str
    argument: str
    data_dependent: bool
    verdict: Verdict
    validated: bool
    detail: str = ""


@cache
def read_source(path: Path) -> dict[str, Definition]:
    """Read the kernels of a source by name, by regular expressions; they suffice for kernels/."""
    source = _COMMENT.sub("", path.read_text(encoding="utf-8"))
    defines = {name: int(value) for name, value in _DEFINE.findall(source)}
    return {
        name: Definition(
            parameters=tuple(_parameter(part) for part in parameters.split(",")),
            required_local_size=_required(attribute, defines),
        )
        for attribute, name, parameters in _DEFINITION.findall(source)
    }


def _parameter(text: str) -> Parameter:
    name = re.search(r"(\w+)\s*$", text)
    assert name is not None, text
    is_float = re.search(r"\b(float|double)\b", text) is not None
    if "*" not in text:
        return Parameter(name=name.group(1), space=None, is_float=is_float)
    space = re.search(r"\b(?:__)?(global|constant|local)\b", text)
    assert space is not None, f"pointer without an address space: {text}"
    return Parameter(name=name.group(1), space=space.group(1), is_float=is_float)


def _required(attribute: str, defines: Mapping[str, int]) -> tuple[int, ...] | None:
    found = re.search(r"reqd_work_group_size\s*\(([^)]*)\)", attribute + ")")
    if found is None:
        return None
    words = [word.strip() for word in found.group(1).split(",")]
    return tuple(defines[word] if word in defines else int(word) for word in words)


def read_side_file(path: Path) -> list[SideKernel]:
    """Read the kernels of one side file."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["kernel"]
    return [SideKernel(source=path.with_suffix(".cl"), table=table) for table in tables]


def read_side_files(folder: Path = KERNELS) -> list[SideKernel]:
    """Read every side file of a folder, in the order of their names."""
    return [kernel for path in sorted(folder.glob("*.toml")) for kernel in read_side_file(path)]


def sizes_of(global_size: Sequence[int], local_size: Sequence[int]) -> dict[str, int]:
    """Return the sizes of an NDRange by name; a missing dimension has size 1."""
    sizes = dict.fromkeys(sorted(SIZE_NAMES), 1)
    for dim, (items, lanes) in enumerate(zip(global_size, local_size, strict=True)):
        sizes[f"global_size_{dim}"] = items
        sizes[f"local_size_{dim}"] = lanes
        sizes[f"num_groups_{dim}"] = items // lanes
    return sizes


def extent_elements(extent: Mapping[str, Any], sizes: Mapping[str, int]) -> int | None:
    """Return the elements that a launch touches, by the side file; None if it gives a reason."""
    if "reason" in extent:
        return None
    value = _evaluate(extent["constant"], extent["terms"], sizes)
    if "cap_terms" in extent:
        value = min(value, _evaluate(extent["cap_constant"], extent["cap_terms"], sizes))
    return max(value, 0)


def _evaluate(constant: int, terms: Iterable[Mapping[str, Any]], sizes: Mapping[str, int]) -> int:
    for term in terms:
        constant += int(term["coefficient"]) * math.prod(sizes[name] for name in term["factors"])
    return constant


def random_launches(
    kernel: SideKernel, *, count: int, seed: int, ranges: Ranges = FORM_RANGES
) -> Iterator[Launch]:
    """Make launches within the kernel's contract, on both sides of its guards and caps.

    A scalar is near a global size or a constant of the side file (or half or twice of it), or
    random.

    Raises:
        ValueError: ``requires`` refuses nearly all launches.
    """
    rng = random.Random(f"{kernel.name} {seed}")
    made = 0
    for _ in range(_MOST_TRIES):
        if made == count:
            return
        launch = _random_launch(kernel, rng, ranges)
        if kernel.accepts(launch.sizes):
            made += 1
            yield launch
    if made < count:
        raise ValueError(f"{kernel.name}: {made} of {_MOST_TRIES} launches meet its requirements")


def _random_launch(kernel: SideKernel, rng: random.Random, ranges: Ranges) -> Launch:
    max_lanes = max(2, round(ranges.max_lanes ** (1 / kernel.dims)))
    max_groups = max(3, round(ranges.max_groups ** (1 / kernel.dims)))
    local_size = kernel.required_local_size or tuple(
        _log_uniform(rng, 1, max_lanes) for _ in range(kernel.dims)
    )
    local_size = local_size[: kernel.dims]
    wide = [number for number in _constants(kernel) if number <= _WIDEST_LANES]
    if kernel.required_local_size is None and kernel.dims == 1 and wide and rng.random() < 0.2:
        local_size = (rng.choice(wide) + rng.choice((-1, 0, 1, 7)),)
    if kernel.required_local_size is not None:
        max_groups = min(max_groups, 3) if ranges is RUN_RANGES else max_groups
    global_size = tuple(lanes * _log_uniform(rng, 1, max_groups) for lanes in local_size)
    if any("global_size_0 % 32" in condition for condition in kernel.table["requires"]):
        global_size = (32 * _log_uniform(rng, 1, max_groups), *global_size[1:])
        local_size = (rng.choice((1, 2, 4, 8, 16, 32)), *local_size[1:])
    near = [*global_size, *_constants(kernel)]
    scalars = {
        p.name: _random_scalar(rng, near, ranges.max_scalar)
        for p in kernel.parameters
        if p.space is None and not p.is_float
    }
    return Launch(global_size=global_size, local_size=local_size, scalars=scalars)


def _random_scalar(rng: random.Random, near: Sequence[int], largest: int) -> int:
    anchor = rng.choice(near)
    value = rng.choice(
        (
            anchor,
            anchor + rng.choice((-1, 1)),
            anchor // 2,
            2 * anchor,
            rng.randint(1, max(1, anchor)),
            _log_uniform(rng, 1, largest),
        )
    )
    return max(1, value)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _constants(kernel: SideKernel) -> list[int]:
    """Return the numbers in the side file's polynomials; guards and caps are near them."""
    found: set[int] = set()
    for extent in kernel.extents:
        found |= {extent.get("constant", 0), extent.get("cap_constant", 0)}
        found |= {
            term["coefficient"] for term in (*extent.get("terms", ()), *extent.get("cap_terms", ()))
        }
    return sorted(number for number in found if 2 < number < 10_000)


def compare(
    kernel: SideKernel, analysis: Analysis | None, launches: Iterable[Launch]
) -> list[Pair]:
    """Judge the analysis of a kernel for each pointer argument, by values and not by formulas.

    Args:
        kernel: the truth, for launches within the kernel's contract.
        analysis: the analysis to judge; None if there is none.
        launches: a few hundred of ``random_launches``.
    """
    all_sizes = [launch.sizes for launch in launches]
    pairs: list[Pair] = []
    for truth in kernel.extents:
        found = None if analysis is None else analysis.extent(truth["position"])
        verdict, detail = _judge(truth, found, all_sizes)
        pairs.append(
            Pair(
                kernel=kernel.name,
                argument=truth["argument"],
                data_dependent=kernel.is_data_dependent,
                verdict=verdict,
                validated=found is not None and found.validated,
                detail=detail,
            )
        )
    return pairs


def _judge(
    truth: Mapping[str, Any], found: Extent | None, all_sizes: Sequence[Mapping[str, int]]
) -> tuple[Verdict, str]:
    has_form = found is not None and found.form is not None
    if "reason" in truth:
        claims = found is not None and has_form and found.validated
        return (Verdict.WRONG if claims else Verdict.NO_FORM), f"no form: {truth['reason']}"
    if found is None or not has_form:
        return Verdict.MISSING, "" if found is None else found.reason
    above = ""
    for sizes in all_sizes:
        true, claimed = extent_elements(truth, sizes), found.elements(sizes)
        assert true is not None
        assert claimed is not None
        if claimed != true:
            place = f"{claimed} instead of {true} at {_changed(sizes)}"
            if claimed < true or found.validated:
                return Verdict.WRONG, place
            above = above or place
    return (Verdict.BOUND, above) if above else (Verdict.EXACT, "")


def _changed(sizes: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name}={value}" for name, value in sizes.items() if value != 1 or name not in SIZE_NAMES
    )
