"""The kernels folder keeps its own contract: every source has a side file, and both agree."""

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "kernels"
SIZE_NAMES = frozenset(
    f"{stem}_{dim}" for stem in ("global_size", "local_size", "num_groups") for dim in range(3)
)
KERNEL_KEYS = {
    "name",
    "dims",
    "category",
    "description",
    "requires",
    "writes",
    "reads",
    "data_dependent",
    "extent",
}
POLYNOMIAL_KEYS = {"constant", "terms"}
CAP_KEYS = {"cap_constant", "cap_terms"}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DEFINITION = re.compile(
    r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)\s*\(([^)]*)\)", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One kernel parameter as written: its name, and its address space (None for a scalar)."""

    name: str
    space: str | None
    is_float: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SideKernel:
    """One `[[kernel]]` table with the file stem it came from."""

    stem: str
    table: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.table["name"])

    @property
    def extents(self) -> list[dict[str, Any]]:
        return list(self.table["extent"])


def parse_parameter(text: str) -> Parameter:
    name = re.search(r"(\w+)\s*$", text)
    assert name is not None, text
    is_float = re.search(r"\b(float|double)\b", text) is not None
    if "*" not in text:
        return Parameter(name=name.group(1), space=None, is_float=is_float)
    space = re.search(r"\b(?:__)?(global|constant|local)\b", text)
    assert space is not None, f"pointer without an address space: {text}"
    return Parameter(name=name.group(1), space=space.group(1), is_float=is_float)


def parse_source(path: Path) -> dict[str, list[Parameter]]:
    source = COMMENT.sub("", path.read_text(encoding="utf-8"))
    return {
        name: [parse_parameter(part) for part in parameters.split(",")]
        for name, parameters in DEFINITION.findall(source)
    }


def read_side_files() -> Iterator[SideKernel]:
    for path in sorted(FOLDER.glob("*.toml")):
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["kernel"]:
            yield SideKernel(stem=path.stem, table=table)


SIDE_KERNELS = list(read_side_files())
each_kernel = pytest.mark.parametrize("kernel", SIDE_KERNELS, ids=lambda kernel: kernel.name)


def parameters_of(kernel: SideKernel) -> list[Parameter]:
    return parse_source(FOLDER / f"{kernel.stem}.cl")[kernel.name]


def evaluate(constant: int, terms: list[dict[str, Any]], sizes: dict[str, int]) -> int:
    for term in terms:
        constant += int(term["coefficient"]) * math.prod(sizes[name] for name in term["factors"])
    return constant


def extent_elements(extent: dict[str, Any], sizes: dict[str, int]) -> int:
    value = evaluate(extent["constant"], extent["terms"], sizes)
    if "cap_terms" in extent:
        value = min(value, evaluate(extent["cap_constant"], extent["cap_terms"], sizes))
    return max(value, 0)


def simple_launches(kernel: SideKernel) -> Iterator[tuple[dict[str, int], int]]:
    """Sizes and scalars of simple-strategy launches, each with g**dims."""
    shapes: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
        1: [((32,), (32,)), ((96,), (96,)), ((2976,), (992,)), ((65536,), (256,))],
        2: [((16, 16), (16, 16)), ((64, 16), (16, 16)), ((16, 64), (16, 16)), ((48, 32), (16, 16))],
        3: [((4, 4, 4), (4, 4, 4)), ((16, 8, 32), (8, 8, 4)), ((96, 96, 96), (8, 8, 4))],
    }
    dims = kernel.table["dims"]
    integers = [p.name for p in parameters_of(kernel) if p.space is None and not p.is_float]
    for global_size, local_size in shapes[dims]:
        sizes = dict.fromkeys(SIZE_NAMES, 1) | dict.fromkeys(integers, global_size[0])
        for dim, (items, lanes) in enumerate(zip(global_size, local_size, strict=True)):
            sizes[f"global_size_{dim}"] = items
            sizes[f"local_size_{dim}"] = lanes
            sizes[f"num_groups_{dim}"] = items // lanes
        yield sizes, max(global_size) ** dims


def test_at_least_25_kernels_with_distinct_names() -> None:
    names = [kernel.name for kernel in SIDE_KERNELS]
    assert len(names) >= 25
    assert len(set(names)) == len(names)


def test_every_source_has_a_side_file_and_the_reverse() -> None:
    sources = {path.stem for path in FOLDER.glob("*.cl")}
    sides = {path.stem for path in FOLDER.glob("*.toml")}
    assert sources
    assert sources == sides


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.cl")), ids=lambda path: path.stem)
def test_source_opens_with_a_comment_and_describes_every_kernel(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    num_comment = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    assert 2 <= num_comment <= 4
    described = {kernel.name for kernel in SIDE_KERNELS if kernel.stem == path.stem}
    assert described == set(parse_source(path))


@each_kernel
def test_kernel_table_is_well_formed(kernel: SideKernel) -> None:
    assert set(kernel.table) == KERNEL_KEYS
    assert kernel.table["dims"] in {1, 2, 3}
    assert kernel.table["category"]
    assert kernel.table["description"]
    assert isinstance(kernel.table["data_dependent"], bool)
    buffers = {p.name for p in parameters_of(kernel) if p.space in {"global", "constant"}}
    assert kernel.table["writes"], "a kernel that writes nothing measures nothing"
    assert set(kernel.table["reads"]) | set(kernel.table["writes"]) == buffers


@each_kernel
def test_extents_match_the_parameter_list(kernel: SideKernel) -> None:
    parameters = parameters_of(kernel)
    pointers = {(i, p.name) for i, p in enumerate(parameters) if p.space is not None}
    listed = [(extent["position"], extent["argument"]) for extent in kernel.extents]
    assert sorted(listed) == sorted(pointers)


@each_kernel
def test_extents_are_sparse_integer_polynomials_of_legal_names(kernel: SideKernel) -> None:
    scalars = {p.name for p in parameters_of(kernel) if p.space is None and not p.is_float}
    for extent in kernel.extents:
        keys = set(extent) - {"argument", "position"}
        assert keys in ({"reason"}, POLYNOMIAL_KEYS, POLYNOMIAL_KEYS | CAP_KEYS)
        if "reason" in extent:
            assert extent["reason"]
            continue
        assert isinstance(extent["constant"], int)
        for term in extent["terms"] + extent.get("cap_terms", []):
            assert set(term) == {"factors", "coefficient"}
            assert isinstance(term["coefficient"], int)
            assert term["coefficient"] != 0
            assert 1 <= len(term["factors"]) <= 3
            assert set(term["factors"]) <= SIZE_NAMES | scalars


@each_kernel
def test_simple_strategy_meets_the_preconditions_and_covers_every_extent(
    kernel: SideKernel,
) -> None:
    spaces = {p.name: p.space for p in parameters_of(kernel)}
    for sizes, num_elements in simple_launches(kernel):
        for condition in kernel.table["requires"]:
            assert eval(condition, {"__builtins__": {}}, dict(sizes)), condition
        num_lanes = math.prod(sizes[f"local_size_{dim}"] for dim in range(3))
        for extent in kernel.extents:
            if "reason" not in extent:
                is_local = spaces[extent["argument"]] == "local"
                available = num_lanes if is_local else num_elements
                assert extent_elements(extent, sizes) <= available, extent["argument"]


def test_readme_lists_every_kernel() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [k.name for k in SIDE_KERNELS if f"| `{k.name}` | {k.stem}.cl |" not in readme] == []


def test_most_extents_have_a_polynomial() -> None:
    extents = [extent for kernel in SIDE_KERNELS for extent in kernel.extents]
    without = [extent for extent in extents if "reason" in extent]
    assert len(without) <= len(extents) // 10
