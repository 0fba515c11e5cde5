"""Trace one launch in this process: which work-items access which bytes of its buffers.

The accesses to a buffer become a histogram: a column stands for some consecutive work-items, a row
for some consecutive bytes. Decides which work-groups run, and owns the limits of columns and rows.
The work-items of a group run together if they meet at barriers, unless some of them return earlier.
``traced.cl`` fills the histograms. ``trace_child.py`` calls this module in a child process that can
be killed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np
import numpy.typing as npt

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.accesses import AccessMap, AccessTrace, AccessUse, AccessView
from llmperf_common.records import Kernel, LaunchConfig
from workers.analysis.copy.rewriter import UnresolvedError
from workers.device.interface import DeviceFailure
from workers.work.counted_copy import CountedCopy, CountedSite, counted_copy
from workers.work.opencl_virtual import OpenclVirtualDevice, VirtualKernel
from workers.work.sampling.runs import UncountedError
from workers.work.sampling.units import Grid, grid_of

COLUMNS, ROWS = 128, 64
"""Maximum columns and rows of a histogram."""
MOST_ITEMS, MOST_GROUPS = 4096, COLUMNS
"""Maximum work-items and work-groups of a launch that run. A count of work
(``workers/work/launch.py``) runs at most as many work-items."""
_MOST_TURNS = 2**24
"""Maximum loop iterations of one run; this number of iterations takes a second or two."""
_HEAD_WORDS = 8
_LOW, _HIGH, _ACCESSES, _OUTSIDE, _FIRST, _SHIFT, _LIMIT = range(7)
"""The words at the head of a record; each buffer has a record for each ``AccessUse``
(``traced.cl``)."""
_CUT_OFF, _LOST = 1, 4
"""Bits of a run's flags."""
_USES = tuple(AccessUse)
_NOTHING = 2**64 - 1

Words = npt.NDArray[np.uint64]


def trace_accesses(
    kernel: Kernel,
    config: LaunchConfig,
    device: OpenclVirtualDevice,
    *,
    without_barriers: bool = False,
) -> AccessTrace | Failure:
    """Return what work-items of a launch access, or why that cannot be seen.

    Args:
        kernel: the kernel with its signature.
        config: a launch config of the kernel.
        device: a CPU device.
        without_barriers: run work-items one after another even if they meet at barriers.

    Raises:
        DeviceFailure: The device's context was lost (sticky); its process can run nothing more.
    """
    try:
        copy = traced_copy(kernel, without_barriers=without_barriers)
        if copy.is_grouped:
            apart = _early_leavers(kernel, config, device)
            if apart is not None:
                return apart
        trace, _ = _traced(kernel, config, copy, device)
    except (UnresolvedError, UncountedError) as error:
        return Failure(code=FailureCode.UNSUPPORTED, stage=Stage.PROBE, detail=str(error))
    except DeviceFailure as error:
        if error.sticky:
            raise
        return error.failure
    return replace(trace, without_barriers=without_barriers or copy.lacks_barriers)


def _early_leavers(
    kernel: Kernel, config: LaunchConfig, device: OpenclVirtualDevice
) -> AccessTrace | None:
    """Return a trace without barriers, if some work-items of a group do not reach its barriers.

    The effect of such a barrier is undefined: a CPU may run work-items that have returned.

    Returns:
        The trace; None if all work-items reach each barrier, or if they cannot run one by one.

    Raises:
        UnresolvedError: As in ``traced_copy``.
        DeviceFailure: As in ``trace_accesses``.
    """
    copy = traced_copy(kernel, without_barriers=True)
    try:
        trace, leaves_early = _traced(kernel, config, copy, device)
    except UncountedError:
        return None
    return replace(trace, without_barriers=True) if leaves_early else None


def _traced(
    kernel: Kernel, config: LaunchConfig, copy: CountedCopy, device: OpenclVirtualDevice
) -> tuple[AccessTrace, bool]:
    """Return a copy's trace, and whether the work-items of a group reached different barriers."""
    loaded = device.load(kernel, copy)
    try:
        launch = _Launch(kernel, config, copy, loaded)
        return launch.trace(), launch.leaves_early
    finally:
        loaded.release()


def traced_copy(kernel: Kernel, *, without_barriers: bool) -> CountedCopy:
    """Return the instrumented copy of a kernel that counts work and records each access.

    Raises:
        UnresolvedError: The copy cannot be made.
    """
    copy = counted_copy(
        kernel.source, kernel.name, kernel.build_options, without_barriers=without_barriers
    )
    uses = ",".join(f"{_bits(site)}u" for site in (None, *copy.sites))
    head = (
        f"#define LP_TRACED 1\n#define LP_TRACE_USES {len(_USES)}\n#define LP_TRACE_HEAD {_HEAD_WORDS}\n"
        f"#define LP_TRACE_COLUMNS {COLUMNS}\n#define LP_TRACE_ROWS {ROWS}\n"
        f"#define LP_USES_OF {{{uses}}}\n"
    )
    hook = resources.files("workers.work").joinpath("traced.cl").read_text()
    return replace(copy, source=f"{head}{copy.source}\n{hook}")


def _bits(site: CountedSite | None) -> int:
    """Return the uses of a site as bits: ``load_store`` has two, an unknown site has ``OTHER``."""
    names = site.use.split("_") if site is not None else [AccessUse.OTHER.value]
    return sum(1 << _USES.index(AccessUse(name)) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffer:
    """A pointer argument: its position, its bytes in this launch, and the bytes of an element."""

    position: int
    num_bytes: int
    element_bytes: int


class _Launch:
    """A launch that is ready to be traced."""

    def __init__(
        self, kernel: Kernel, config: LaunchConfig, copy: CountedCopy, loaded: VirtualKernel
    ) -> None:
        self._config, self._copy, self._loaded = config, copy, loaded
        sides = zip(config.global_size, config.local_size, strict=True)
        self._groups = tuple(total // side for total, side in sides)
        self._lanes = math.prod(config.local_size)
        if copy.is_grouped and self._lanes > loaded.max_lanes:
            raise UncountedError(
                f"a work-group has {self._lanes} work-items, but the CPU device runs at most "
                f"{loaded.max_lanes} of this kernel"
            )
        self._grid: Grid = grid_of(self._groups, self._lanes, by_groups=copy.by_groups)
        self._buffers = _buffers(kernel, config, copy)
        self._barriers = np.array([one.tally.get("barriers", 0) for one in copy.blocks])
        self.leaves_early = False
        loaded.prepare(config)

    def trace(self) -> AccessTrace:
        """Return the recorded accesses; raises UncountedError or DeviceFailure."""
        middle = sum(
            side // 2 * math.prod(self._groups[:axis]) for axis, side in enumerate(self._groups)
        )
        group, turns = self._view([middle])
        affordable = _MOST_TURNS // 2 // turns if turns else MOST_GROUPS
        chosen = spread_groups(self._grid.num_groups, self._lanes, most=affordable)
        launch = group
        if len(chosen) > 1:
            # If other groups make far more loop iterations, show only the middle group.
            with contextlib.suppress(UncountedError):
                launch, _ = self._view(chosen)
        if not group.maps and launch.maps:
            group = self._view([_busiest(launch, self._lanes)])[0]
        return AccessTrace(
            global_size=self._config.global_size,
            local_size=self._config.local_size,
            launch=launch,
            group=group if launch.groups != group.groups else None,
        )

    def _view(self, groups: Sequence[int]) -> tuple[AccessView, int]:
        """Return what some work-groups access, and how many iterations their loops made."""
        notes = self._blank()
        ranges, turns = self._run(groups, notes)
        items_a_column = -(-len(groups) * self._lanes // COLUMNS)
        placed = self._blank()
        placed[0] = items_a_column
        heads, found = self._heads(placed), self._heads(ranges)
        for slot in np.flatnonzero(found[:, _ACCESSES]).tolist():
            element = self._buffers[slot // len(_USES)].element_bytes
            low, high = int(found[slot, _LOW]), int(found[slot, _HIGH])
            shift = row_shift(low, high, element)
            heads[slot, _FIRST], heads[slot, _SHIFT] = low >> shift << shift, shift
        counted, _ = self._run(groups, placed)
        maps = [
            self._map(slot, found[slot], counted)
            for slot in np.flatnonzero(found[:, _ACCESSES] + found[:, _OUTSIDE]).tolist()
        ]
        view = AccessView(groups=tuple(groups), items_a_column=items_a_column, maps=tuple(maps))
        return view, turns

    def _blank(self) -> Words:
        num_slots = (1 + len(self._buffers)) * len(_USES)  # the last slots belong to no buffer
        notes = np.zeros(1 + num_slots * (_HEAD_WORDS + COLUMNS * ROWS), np.uint64)
        heads = self._heads(notes)
        heads[:, _LOW] = _NOTHING
        for number, buffer in enumerate(self._buffers):
            heads[number * len(_USES) : (number + 1) * len(_USES), _LIMIT] = buffer.num_bytes
        return notes

    def _heads(self, notes: Words) -> Words:
        num_slots = (1 + len(self._buffers)) * len(_USES)
        return notes[1 : 1 + num_slots * _HEAD_WORDS].reshape(num_slots, _HEAD_WORDS)

    def _run(self, groups: Sequence[int], notes: Words) -> tuple[Words, int]:
        grid = self._grid
        units = [grid.unit(place) for one in groups for place in grid.places_of_group(one)]
        found, run = self._loaded.trace(self._config, units, notes, most_turns=_MOST_TURNS)
        if run.flags & _LOST:
            raise UncountedError(
                "an access through a pointer that points to neither an argument nor a variable"
            )
        if run.flags & _CUT_OFF:
            raise UncountedError(
                f"loops of more than {_MOST_TURNS} iterations in {len(groups)} work-groups"
            )
        barriers = (run.rows @ self._barriers).reshape(len(groups), self._lanes)
        self.leaves_early |= bool((barriers != barriers[:, :1]).any())
        return found, run.turns

    def _map(self, slot: int, head: Words, counted: Words) -> AccessMap:
        """Return one histogram; ``head``: range and totals, from the run before ``counted``."""
        buffer, use = divmod(slot, len(_USES))
        heads = self._heads(counted)
        at = 1 + heads.size + slot * COLUMNS * ROWS
        cells = counted[at : at + COLUMNS * ROWS].reshape(COLUMNS, ROWS)
        places = np.argwhere(cells)
        return AccessMap(
            position=self._buffers[buffer].position,
            use=_USES[use],
            first_byte=int(heads[slot, _FIRST]),
            bytes_a_row=1 << int(heads[slot, _SHIFT]),
            num_rows=int(places[:, 1].max(initial=-1)) + 1,
            cells=tuple((int(c), int(r), int(cells[c, r])) for c, r in places),
            num_accesses=int(head[_ACCESSES]),
            num_outside=int(head[_OUTSIDE]),
        )


def _buffers(kernel: Kernel, config: LaunchConfig, copy: CountedCopy) -> tuple[_Buffer, ...]:
    assert kernel.signature is not None, "only kernels with a signature are traced"
    elements = {one.position: one.elements or 0 for one in config.args}
    by_position = {one.position: one for one in kernel.signature.arguments}
    return tuple(
        _Buffer(
            position=position,
            num_bytes=elements[position] * max(1, by_position[position].element_bytes),
            element_bytes=max(1, by_position[position].element_bytes),
        )
        for position in copy.positions
    )


def _busiest(view: AccessView, lanes: int) -> int:
    """Return the work-group of a view that has the most accesses."""
    accesses = np.zeros(len(view.groups))
    for one in view.maps:
        for column, _, number in one.cells:
            accesses[min(column * view.items_a_column // lanes, len(accesses) - 1)] += number
    return view.groups[int(accesses.argmax())]


def spread_groups(num_groups: int, num_lanes: int, *, most: int = MOST_GROUPS) -> list[int]:
    """Return the work-groups to run: all, or some that are evenly spread from first to last.

    Args:
        num_groups: number of work-groups of the launch.
        num_lanes: work-items of each work-group.
        most: maximum number of work-groups to run; one runs in any case.

    >>> spread_groups(8, 512), spread_groups(4097, 1024), spread_groups(9, 8192)
    ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1365, 2731, 4096], [0])
    """
    number = max(1, min(num_groups, MOST_ITEMS // num_lanes, MOST_GROUPS, most))
    if number == 1:
        return [0]
    return [round(one * (num_groups - 1) / (number - 1)) for one in range(number)]


def row_shift(low: int, high: int, element_bytes: int) -> int:
    """Return log2 of a row's bytes, so that ``low`` to ``high`` (excluded) fit in ``ROWS`` rows.

    A row is never smaller than an element.

    >>> row_shift(0, 4096, 4), row_shift(60, 64, 4), row_shift(4, 4100, 4)
    (6, 2, 7)
    """
    shift = element_bytes.bit_length() - 1
    while ((high - 1) >> shift) - (low >> shift) >= ROWS:
        shift += 1
    return shift
