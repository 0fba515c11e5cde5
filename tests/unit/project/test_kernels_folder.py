"""The kernels folder keeps its own contract: every source has a side file, and both agree."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.truth.side_files import (
    KERNELS,
    SIZE_NAMES,
    SideKernel,
    extent_elements,
    read_side_files,
    read_source,
    sizes_of,
)
from tests.support.truth.side_work import FIELDS

ACCESS_KEYS = {"use", "buffer", "at", "bytes", "when", "turns"}
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
    "work",
}
RACES = {"bfs_frontier", "peak_cmpxchg"}
"""How many atomic operations these do follows from who comes first."""
POLYNOMIAL_KEYS = {"constant", "terms"}
CAP_KEYS = {"cap_constant", "cap_terms"}
SIDE_KERNELS = read_side_files()
each_kernel = pytest.mark.parametrize("kernel", SIDE_KERNELS, ids=lambda kernel: kernel.name)


def simple_launches(kernel: SideKernel) -> Iterator[tuple[dict[str, int], int]]:
    """Sizes and scalars of simple-strategy launches, each with g**dims."""
    shapes: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
        1: [((32,), (32,)), ((96,), (96,)), ((2976,), (992,)), ((65536,), (256,)), ((160,), (1,))],
        2: [((16, 16), (16, 16)), ((64, 16), (16, 16)), ((16, 64), (16, 16)), ((48, 32), (16, 16))],
        3: [((4, 4, 4), (4, 4, 4)), ((16, 8, 32), (8, 8, 4)), ((96, 96, 96), (8, 8, 4))],
    }
    required = kernel.required_local_size
    if required is not None and kernel.dims == 1:
        shapes[1] = [((groups * required[0],), required[:1]) for groups in (1, 3, 1024)]
    integers = [p.name for p in kernel.parameters if p.space is None and not p.is_float]
    for global_size, local_size in shapes[kernel.dims]:
        sizes = sizes_of(global_size, local_size) | dict.fromkeys(integers, global_size[0])
        yield sizes, max(global_size) ** kernel.dims


def test_at_least_66_kernels_with_distinct_names() -> None:
    names = [kernel.name for kernel in SIDE_KERNELS]
    assert len(names) >= 66
    assert len(set(names)) == len(names)


def test_every_source_has_a_side_file_and_the_reverse() -> None:
    sources = {path.stem for path in KERNELS.glob("*.cl")}
    sides = {path.stem for path in KERNELS.glob("*.toml")}
    assert sources
    assert sources == sides


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cl")), ids=lambda path: path.stem)
def test_source_opens_with_a_comment_and_describes_every_kernel(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    num_comment = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    assert 2 <= num_comment <= 4
    described = {kernel.name for kernel in SIDE_KERNELS if kernel.stem == path.stem}
    assert described == set(read_source(path))


@each_kernel
def test_kernel_table_is_well_formed(kernel: SideKernel) -> None:
    assert set(kernel.table) == KERNEL_KEYS
    assert kernel.table["dims"] in {1, 2, 3}
    assert kernel.table["category"]
    assert kernel.table["description"]
    assert isinstance(kernel.table["data_dependent"], bool)
    buffers = {p.name for p in kernel.parameters if p.space in {"global", "constant"}}
    assert kernel.table["writes"], "a kernel that writes nothing measures nothing"
    assert set(kernel.table["reads"]) | set(kernel.table["writes"]) == buffers


@each_kernel
def test_the_work_is_told_in_known_words(kernel: SideKernel) -> None:
    table = kernel.table["work"]
    assert set(table) <= {"where", "access", *FIELDS}
    assert "active" in table
    buffers = {p.name for p in kernel.parameters if p.space in {"global", "constant"}}
    for access in table.get("access", ()):
        assert {"use", "buffer", "at", "bytes"} <= set(access) <= ACCESS_KEYS
        assert access["use"] in {"load", "store", "atomic"}
        assert access["buffer"] in buffers
    assert ("stores" in table) or ("atomics" in table) or kernel.name in RACES
    assert ("loads" in table) == ("load_bytes" in table)
    assert ("stores" in table) == ("store_bytes" in table)


@each_kernel
def test_extents_match_the_parameter_list(kernel: SideKernel) -> None:
    parameters = kernel.parameters
    pointers = {(i, p.name) for i, p in enumerate(parameters) if p.space is not None}
    listed = [(extent["position"], extent["argument"]) for extent in kernel.extents]
    assert sorted(listed) == sorted(pointers)


@each_kernel
def test_extents_are_sparse_integer_polynomials_of_legal_names(kernel: SideKernel) -> None:
    scalars = {p.name for p in kernel.parameters if p.space is None and not p.is_float}
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
    spaces = {p.name: p.space for p in kernel.parameters}
    for sizes, num_elements in simple_launches(kernel):
        assert kernel.accepts(sizes), kernel.table["requires"]
        num_lanes = math.prod(sizes[f"local_size_{dim}"] for dim in range(3))
        for extent in kernel.extents:
            elements = extent_elements(extent, sizes)
            if elements is not None:
                is_local = spaces[extent["argument"]] == "local"
                available = num_lanes if is_local else num_elements
                assert elements <= available, extent["argument"]


def test_readme_lists_every_kernel() -> None:
    readme = (KERNELS / "README.md").read_text(encoding="utf-8")
    assert [k.name for k in SIDE_KERNELS if f"| `{k.name}` | {k.stem}.cl |" not in readme] == []


def test_nearly_all_extents_that_no_data_decides_have_a_polynomial() -> None:
    extents = [e for kernel in SIDE_KERNELS if not kernel.is_data_dependent for e in kernel.extents]
    without = [extent for extent in extents if "reason" in extent]
    assert len(without) <= len(extents) // 20
