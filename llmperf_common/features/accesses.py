"""Which work-items of a launch access which bytes of its buffers: one record a traced launch.

Owns the record and nothing else: ``workers/work/tracing.py`` makes it, the report draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AccessUse(StrEnum):
    """What an access does; ``OTHER`` is one of a built-in function that loads or stores."""

    LOAD = "load"
    STORE = "store"
    ATOMIC = "atomic"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessMap:
    """A histogram of the accesses to one buffer: work-items by column, bytes by row.

    Attributes:
        position: of the buffer among the kernel's arguments.
        use: of all accesses counted here.
        first_byte: offset in the buffer at which row 0 begins; a multiple of ``bytes_a_row``.
        bytes_a_row: a power of two.
        num_rows: up to the last one that is accessed.
        cells: column, row and number of accesses, where there are any. An access counts in each
            row that it touches.
        num_accesses: of all cells, each counted once.
        num_outside: further accesses, outside of the buffer as the launch sizes it; in no cell.
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
        items_a_column: work-items; the last column may have fewer.
        maps: by position and use; only what is accessed.
    """

    groups: tuple[int, ...]
    items_a_column: int
    maps: tuple[AccessMap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTrace:
    """The accesses of one launch to global and constant memory, seen of some of its work-groups.

    Attributes:
        global_size: work-items of the launch in each dimension.
        local_size: of a work-group.
        launch: work-groups evenly spread over the launch, or all of them.
        group: one work-group; None where ``launch`` is no more.
        without_barriers: work-items ran one after another although they meet at barriers.
    """

    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    launch: AccessView
    group: AccessView | None
    without_barriers: bool = False
