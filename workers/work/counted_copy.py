"""Make the counted copy of a kernel: the same code, which also counts what a virtual launch does.

The sizes of a virtual launch are only numbers: its buffers are never allocated in full. Owns the
kernel's header and the loop over work-items. ``blocks.py`` and ``costs.py`` find the blocks and
what they do. Accesses are rewritten as for the memory analysis, but with the hooks of this folder's
``hooks.cl``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from workers.analysis.copy.calls import CallRewriter
from workers.analysis.copy.cursors import CALL, children_of, has_barrier, text_range
from workers.analysis.copy.other_devices import varies_by_device
from workers.analysis.copy.rewriter import CONTEXT, WIDEST_PLAIN_BYTES, Rewriter, UnresolvedError
from workers.analysis.copy.source_copy import (
    NO_BARRIERS,
    SourceCopy,
    body_of,
    line_of,
    offset_of,
    offsets,
    parameters_of,
    pointer_space,
    with_hooks,
)
from workers.analysis.copy.walk import FunctionWalk
from workers.source import builtin_groups as groups
from workers.source.clang.cursor import deep_recursion
from workers.source.clang.influence import Influence, influence_of
from workers.source.clang.nodes import Space, TypeFacts
from workers.source.clang.parse import ParserCrashError, parse
from workers.work.blocks import Block, BlockWalk

KERNEL_NAME = "lp_counted"
SLACK_BYTES = 1024
"""Spare bytes after each pointer argument's memory, for a wide access that begins near its end."""
NUM_TURNS = 40
"""Number of examined iterations of a loop; they are spread over its first 2**19 iterations."""
WATCHED_WARPS = 4
"""Warps examined in each work-group, if the sample consists of whole work-groups."""
MET_SETS, MET_WAYS = 32, 8
"""Size of the table of addresses of a unit's atomic operations: sets, and entries of each set
(``touched.cl``). A unit is a warp or a work-group (``units.py``)."""
TOUCHED_TABLE, TOUCHED_LOG = 2**12, 2**14
"""Number of sectors in the table and in the log of a watched run, which records the bytes that
work-groups touch (``touched.cl``)."""
UNIT_WORDS = 5
RANGES_AT = 2
"""Words of a run's output before the access ranges of the arguments."""
_IS_ATOMIC = 2**31
_A_PART, _MOST_PARTS = 2**24, 127
DESCRIBED_AT = 16
DESCRIBED_WORDS = 10
"""Words of a launch's description before the words of its buffers, and words for each buffer."""
_MOST_SEEN = 96
_MOST_BLOCKS = 2000
_MOST_OPTIMISED = 100
_IDS = groups.NDRANGE_CALLS | {"get_work_dim", "get_global_linear_id", "get_local_linear_id"}
_GROUP_IDS = frozenset({"get_local_id", "get_group_id", "get_local_linear_id"})
_COPIES = frozenset({"async_work_group_copy", "async_work_group_strided_copy"})
_LEAVE = "goto lp_next;"
_SHARES = re.compile(r"\b(?:atom|atomic|work_group|sub_group)_|barrier")
"""What the text of a kernel contains whose work-items can see values of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedBlock:
    """A basic block: what one execution does, and whether the block is the body of a loop."""

    tally: Mapping[str, int]
    is_turn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSite:
    """An access to global or constant memory.

    ``block``: number of its block. ``use``: ``load``, ``store``, ``load_store`` or ``atomic``.
    ``requests``: requests that one execution by one work-item makes; a wide vector needs several.
    """

    block: int
    use: str
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedCopy:
    """A kernel that counts.

    ``source``: text with one kernel, ``lp_counted``. ``is_grouped``: the work-items of a work-group
    run together, because they meet at barriers; otherwise work-items run one after another.
    ``by_groups``: a work-item's code may depend on its group or on its position in the group, so
    the sample consists of whole work-groups, not warps. ``sites``: the accesses whose sectors are
    recorded; None for an access to private or local memory. ``positions``: the positions of the
    kernel's pointer arguments. ``lacks_barriers``: barriers were left out that the caller wanted to
    keep, because a CPU device would take very long to compile them. ``influence``: what the kernel
    decides by values of other work-items.
    """

    source: str
    blocks: tuple[CountedBlock, ...]
    sites: tuple[CountedSite | None, ...]
    positions: tuple[int, ...]
    is_grouped: bool
    by_groups: bool
    lacks_barriers: bool = False
    influence: Influence = field(default_factory=Influence)

    @property
    def has_atomics(self) -> bool:
        """Whether the kernel has atomic operations in global memory."""
        return any(site is not None and site.use == "atomic" for site in self.sites)

    @property
    def is_optimised(self) -> bool:
        """Whether a compiler may optimise the copy.

        It must not if work-items run together: they share counters, so they must not run in
        parallel. And PoCL optimised a copy of 319 blocks for 8 s. Without optimisation it is built
        in 1 s, and the launches for 68 configs take 1 s more.
        """
        return not self.is_grouped and len(self.blocks) <= _MOST_OPTIMISED

    @property
    def num_seen(self) -> int:
        """Number of sites whose sectors are recorded, plus one for site 0, which means none."""
        return min(len(self.sites) + 1, _MOST_SEEN)


def counted_copy(
    source: str, name: str, build_options: str = "", *, without_barriers: bool = False
) -> CountedCopy:
    """Return the counted copy of the kernel ``name``.

    Args:
        source: OpenCL C text.
        name: the kernel's name.
        build_options: options for the device's compiler.
        without_barriers: run work-items one after another even if they meet at barriers.

    Raises:
        UnresolvedError: Some code cannot be followed; the message says what and where.
    """
    if varies_by_device(source, build_options):
        raise UnresolvedError("its text depends on macros of the device's compiler")
    try:
        with deep_recursion():
            copy = SourceCopy(source, name, build_options)
            made = _Maker(copy, without_barriers).made()
            return replace(made, influence=_influence(copy.text, name, build_options))
    except RecursionError:
        raise UnresolvedError("an expression is nested too deeply") from None


def _influence(text: str, name: str, build_options: str) -> Influence:
    """Return what a kernel decides by values of other work-items. Raises UnresolvedError."""
    if _SHARES.search(text) is None:
        return Influence()
    try:
        parsed = parse(text, build_options)
    except ParserCrashError as error:
        raise UnresolvedError(str(error)) from error
    kernel = next((one for one in parsed.kernels if one.name == name), None)
    return Influence() if kernel is None else influence_of(parsed, kernel)


class _Calls(CallRewriter):
    """Takes ids and sizes from the virtual launch, and counts what a work-group copies."""

    def __init__(
        self,
        rewriter: Rewriter,
        is_defined: Callable[[str], bool],
        copies: Callable[[Any, list[TypeFacts]], Block],
    ) -> None:
        super().__init__(rewriter, is_defined)
        self._copies = copies
        self.asks_for_groups = False

    def rewrite(self, cursor: Any) -> list[tuple[Any, bool]]:
        name, arguments = cursor.spelling, list(cursor.get_arguments())
        if name in groups.FREE_CALLS and name.startswith("get_"):
            if name not in _IDS:
                raise self._rewriter.unresolved(cursor, f"{name} has no value in a virtual launch")
            self.asks_for_groups = self.asks_for_groups or name in _GROUP_IDS
            self._edits.wrap(*text_range(cursor), "lp_", "")
            self._pass_context(cursor, arguments)
            return [(one, False) for one in arguments]
        if name in _COPIES:
            start, end = text_range(arguments[2])
            block = self._copies(cursor, [self._rewriter.type(one) for one in arguments[:2]])
            self._edits.wrap(start, end, f"lp_shared({CONTEXT}, {block.number}, ", ")")
        return super().rewrite(cursor)


class _Sites(Rewriter):
    """Records where in the text each access is, and whether it is outside local memory."""

    def __init__(self, copy: SourceCopy) -> None:
        super().__init__(edits=copy.edits, sites=copy.sites, types=copy.types, line_of=line_of)
        self.ranges: list[tuple[tuple[int, int], bool]] = []

    def site(self, cursor: Any) -> int:
        kind = self.type(cursor)
        space = (kind.pointee or kind).space
        self.ranges.append((text_range(cursor), space is not Space.LOCAL))
        return super().site(cursor)


class _Maker:
    def __init__(self, copy: SourceCopy, without_barriers: bool) -> None:
        self._copy = copy
        self._without_barriers = without_barriers

    def made(self) -> CountedCopy:
        copy = self._copy
        kernel, reachable = copy.prepare()
        bodies = copy.defined(reachable)
        lacks_barriers = copy.has_costly_barriers and not self._without_barriers
        self._without_barriers = self._without_barriers or lacks_barriers
        needs_group = any(has_barrier(body) or _copies(body) for body, _ in bodies)
        is_grouped = needs_group and not self._without_barriers
        positions = self._kernel_header(kernel, is_grouped=is_grouped)
        rewriter = _Sites(copy)
        blocks = BlockWalk(rewriter)
        for body, _ in bodies:
            blocks.walk(body)
        calls = _Calls(rewriter, copy.bodies.__contains__, blocks.copy)
        walk = FunctionWalk(rewriter, copy.bodies.__contains__, calls=calls, leave=_LEAVE)
        for body, is_kernel in bodies:
            walk.rewrite(body, is_kernel=is_kernel)
        if len(blocks.blocks) > _MOST_BLOCKS:
            raise UnresolvedError(f"more than {_MOST_BLOCKS} basic blocks")
        made = CountedCopy(
            source="",
            blocks=tuple(
                CountedBlock(tally=dict(one.tally), is_turn=one.is_turn) for one in blocks.blocks
            ),
            sites=_sites(rewriter, blocks),
            positions=positions,
            is_grouped=is_grouped,
            by_groups=needs_group or calls.asks_for_groups,
            lacks_barriers=lacks_barriers,
        )
        turns = [0, *(blocks.block_at(one[0][0]).turn for one in rewriter.ranges)]
        for number, site in enumerate(made.sites, start=1):
            if site is not None:
                turns[number] |= min(site.requests, _MOST_PARTS) * _A_PART
                turns[number] |= _IS_ATOMIC * (site.use == "atomic")
        return replace(made, source=self._source(made, turns))

    def _source(self, made: CountedCopy, turns: list[int]) -> str:
        copy, num_pointers = self._copy, len(made.positions)
        sizes = {
            "BUFFERS": num_pointers + 1,
            "SPARE": num_pointers,
            "TAGS": num_pointers + 1 + len(copy.sites.variables),
            "WIDEST": -(-copy.sites.widest_bytes // WIDEST_PLAIN_BYTES),
            "SLACK_BYTES": f"{SLACK_BYTES}ul",
            "BLOCKS": len(made.blocks),
            "DESCRIBED": DESCRIBED_AT,
            "WORDS": DESCRIBED_WORDS,
            "GROUPED": int(made.is_grouped),
            "BY_GROUPS": int(made.by_groups),
            "WATCHED": WATCHED_WARPS,
            "SEEN": made.num_seen,
            "TURNS": NUM_TURNS,
            "SET_WORDS": made.num_seen * NUM_TURNS * 64,
            "TURN_OF": "{" + ",".join(f"{one}u" for one in turns) + "}",
            "UNIT_WORDS": UNIT_WORDS,
            "ATOMICS": int(made.has_atomics),
            "MET_SETS": MET_SETS,
            "TOUCHED_TABLE": f"{TOUCHED_TABLE}u",
            "TOUCHED_LOG": f"{TOUCHED_LOG}u",
            "RANGES": RANGES_AT,
        }
        head = "".join(f"#define LP_{name} {value}\n" for name, value in sizes.items())
        if self._without_barriers:
            head += NO_BARRIERS
        files = resources.files("workers.work")
        hooks = "".join(files.joinpath(name).read_text() for name in ("hooks.cl", "touched.cl"))
        return with_hooks(copy, head, hooks)

    def _kernel_header(self, kernel: Any, *, is_grouped: bool) -> tuple[int, ...]:
        """Rename the kernel and its parameters, add the hooks' parameters, loop over work-items."""
        edits = self._copy.edits
        positions: list[int] = []
        opened = [
            f" lp_ctx lp_own; lp_ctx *{CONTEXT} = &lp_own;"
            f" lp_open({CONTEXT}, lp_in, lp_out, lp_rows, lp_kept, lp_seen, lp_sets, lp_touched,"
            " lp_met, lp_unit);"
        ]
        declared = []
        for position, parameter in enumerate(parameters_of(kernel)):
            if not parameter.spelling:
                continue
            at, name = offset_of(parameter.location), parameter.spelling
            edits.rename(at, name, f"lp_a{position}")
            value = f"lp_a{position}"
            if pointer_space(parameter) is not None:
                row = len(positions)
                positions.append(position)
                opened.append(f" lp_buffer({CONTEXT}, {row}, (ulong)lp_a{position});")
                value = f"(__typeof__(lp_a{position}))LP_TAG({row})"
            # Each work-item gets copies, because a kernel may change its parameters.
            declared.append(f" __typeof__(lp_a{position}) {name} = {value};")
        label = "" if is_grouped else " lp_again: ;"
        extra = (
            "__global const ulong *lp_in, __global ulong *lp_out, __global uint *lp_rows, "
            "__global ulong *lp_kept, __global uint *lp_seen, __global uint *lp_sets, "
            "__global ulong *lp_touched, __global ulong *lp_met, uint lp_unit"
        )
        self._copy.rename_kernel(kernel, KERNEL_NAME, extra)
        if not is_grouped:  # drop a required local size: the copy runs with another
            start, name_at = offsets(kernel.extent)[0], offset_of(kernel.location)
            edits.replace(start, name_at, "__kernel void ")
        start = offsets(body_of(kernel).extent)[0]
        edits.insert(start + 1, "".join([*opened, label, *declared]))
        again = "" if is_grouped else f" if (lp_more({CONTEXT})) goto lp_again;"
        edits.insert_last(offsets(body_of(kernel).extent)[1] - 1, f" lp_next: ;{again} ")
        return tuple(positions)


def _sites(rewriter: _Sites, blocks: BlockWalk) -> tuple[CountedSite | None, ...]:
    found: list[CountedSite | None] = []
    for place, is_far in rewriter.ranges:
        use = blocks.uses.get(place)
        site = None
        if is_far and use is not None:
            block = blocks.block_at(place[0]).number
            site = CountedSite(block=block, use=use.name, requests=use.requests)
        found.append(site)
    return tuple(found)


def _copies(cursor: Any) -> bool:
    stack = [cursor]
    while stack:
        one = stack.pop()
        if one._kind_id == CALL and one.spelling.startswith(groups.COPY_PREFIX):
            return True
        stack.extend(children_of(one))
    return False
