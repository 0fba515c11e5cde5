"""One kernel whose extents were derived by hand: the value that the tables of this folder are made of.

Owns the case, the names by which a truth reads a launch, and the arithmetic that many truths share. Knows
nothing of the analysis that it is held against.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

_KERNEL = re.compile(r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(.*?\)\)\)?\s*)?void\s+(\w+)\s*\(")


class Sizes(SimpleNamespace):
    """One launch: ``g0`` to ``g2``, ``l0`` to ``l2``, ``n0`` to ``n2`` (groups), and each scalar by its name."""


Truth = Callable[[Sizes], int]
"""The largest index that any work-item of a launch touches, plus one; 0 where none is touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The last kernel of a source, and what is true of its pointer arguments.

    ``truths``: by argument name. Left out is what contents decide. ``is_steered``: whether contents change an
    index, an access or a number of turns.
    """

    name: str
    source: str
    truths: Mapping[str, Truth]
    is_steered: bool


def case(source: str, /, **truths: Truth) -> Case:
    """Return a case whose indices follow from the launch alone."""
    return _case(source, truths, is_steered=False)


def steered(source: str, /, **truths: Truth) -> Case:
    """Return a case in which buffer contents decide something: what they decide is left out of ``truths``."""
    return _case(source, truths, is_steered=True)


def _case(source: str, truths: Mapping[str, Truth], *, is_steered: bool) -> Case:
    text = textwrap.dedent(source).lstrip("\n")
    name = _KERNEL.findall(text)[-1]
    return Case(name=name, source=text, truths=truths, is_steered=is_steered)


def items(s: Sizes) -> int:
    """One element a work-item of dimension 0."""
    return s.g0


def plane(s: Sizes) -> int:
    """One element a work-item of two dimensions."""
    return s.g0 * s.g1


def volume(s: Sizes) -> int:
    """One element a work-item of three dimensions."""
    return s.g0 * s.g1 * s.g2


def groups(s: Sizes) -> int:
    """One element a work-group of dimension 0."""
    return s.n0


def lanes(s: Sizes) -> int:
    """One element a work-item of a work-group."""
    return s.l0


def one(_: Sizes) -> int:
    """The first element only."""
    return 1


def guarded(s: Sizes) -> int:
    """One element a work-item below the scalar ``n``."""
    return max(0, min(s.g0, s.n))


def pitched(rows: int, columns: int, pitch: int) -> int:
    """Return the extent of a region of a matrix: up to its last row's last column; 0 for an empty region."""
    return (rows - 1) * pitch + columns if rows > 0 and columns > 0 else 0


def boxed(slices: int, rows: int, columns: int, pitch: int, plane_pitch: int) -> int:
    """Return the same of a region of a volume."""
    if min(slices, rows, columns) <= 0:
        return 0
    return (slices - 1) * plane_pitch + (rows - 1) * pitch + columns
