"""Which work-items of a launch access which bytes of its buffers: one record per traced launch.

Owns the record and nothing else: ``workers/work/tracing.py`` makes the record, the report draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AccessUse(StrEnum):
    """What an access does; ``OTHER`` is an access by a built-in function that loads or stores."""

    LOAD = "load"
    STORE = "store"
    ATOMIC = "atomic"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessMap:
    """A histogram of the accesses to one buffer: work-items by column, bytes by row.

    Attributes:
        position: position of the buffer among the kernel's arguments.
        use: what all accesses counted here do.
        first_byte: offset in the buffer at which row 0 begins; a multiple of ``bytes_a_row``.
        bytes_a_row: number of bytes in a row, a power of two.
        num_rows: number of rows, up to the last row that is accessed.
        cells: column, row and number of accesses of each cell with accesses. An access counts in
            each row that it touches.
        num_accesses: number of accesses in all cells, each access counted once.
        num_outside: number of further accesses outside the buffer at its size in this launch; they
            are in no cell.
    """

    position: int
    use: AccessUse
    first_byte: int
    bytes_a_row: int
    num_rows: int
    cells: tuple[tuple[int, int, int], ...]
    num_accesses: int
    num_outside: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessView:
    """Some work-groups side by side: column c holds the work-items from ``c * items_a_column`` on.

    Attributes:
        groups: linear numbers of the work-groups, ascending. Their work-items are ordered by local
            linear id.
        items_a_column: number of work-items in a column; the last column may have fewer.
        maps: one map for each pair of position and use that has accesses.
    """

    groups: tuple[int, ...]
    items_a_column: int
    maps: tuple[AccessMap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTrace:
    """The accesses to global and constant memory by some work-groups of one launch.

    Attributes:
        global_size: work-items of the launch in each dimension.
        local_size: work-items of a work-group in each dimension.
        launch: the view of work-groups evenly spread over the launch, or of all work-groups.
        group: the view of one work-group; None where ``launch`` has only one work-group.
        without_barriers: whether work-items ran one after another although the kernel has barriers.
    """

    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    launch: AccessView
    group: AccessView | None
    without_barriers: bool = False
