"""Collect insertions into a text by offset, and apply them at once.

Insertions around ranges nest like the ranges: of two that begin or end at the same offset, the one
of the longer range is the outer one. If the ranges are equal, the first recorded one is the outer.
"""

from __future__ import annotations

from typing import NamedTuple

from workers.analysis.copy.punctuation import closed_end


class _Half(NamedTuple):
    """The text at one end of a wrapped range, and the offset of the range's other end."""

    other_end: int
    text: bytes


class Edits:
    """Edits of one text by byte offsets. The caller must not let replacements overlap."""

    def __init__(self, text: str) -> None:
        self._raw = text.encode()
        self._before: dict[int, list[bytes]] = {}
        self._opening: dict[int, list[_Half]] = {}
        self._closing: dict[int, list[_Half]] = {}
        self._last: dict[int, list[bytes]] = {}
        self._replaced: dict[int, tuple[int, bytes]] = {}

    @property
    def raw(self) -> bytes:
        """The text as UTF-8; all offsets count its bytes."""
        return self._raw

    def insert(self, offset: int, text: str) -> None:
        """Insert before all that begins at ``offset``, and after earlier insertions there."""
        self._before.setdefault(offset, []).append(text.encode())

    def wrap(self, start: int, end: int, before: str, after: str) -> None:
        """Insert ``before`` at the start of a range and ``after`` at its end."""
        end = closed_end(self._raw, start, end)
        self._opening.setdefault(start, []).append(_Half(end, before.encode()))
        self._closing.setdefault(end, []).append(_Half(start, after.encode()))

    def insert_last(self, closing: int, text: str) -> None:
        """Insert directly before a closing brace or parenthesis, which is the byte at ``closing``.

        The text comes after all that ends there, and before earlier texts of this kind.
        """
        self._last.setdefault(closing, []).append(text.encode())

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace the bytes from ``start`` to ``end``; nothing may be inserted within."""
        self._replaced[start] = (end, text.encode())

    def rename(self, start: int, name: str, new_name: str) -> None:
        """Replace a name that begins at byte ``start``; its letters may take several bytes each."""
        self.replace(start, start + len(name.encode()), new_name)

    def applied(self) -> str:
        """Return the edited text."""
        pieces: list[bytes] = []
        done = 0
        edited = {*self._before, *self._opening, *self._closing, *self._last, *self._replaced}
        for offset in sorted(edited):
            if offset < done:
                continue  # inside a replaced piece
            pieces.append(self._raw[done:offset])
            pieces += self._inserted(offset)
            done = offset
            if offset in self._replaced:
                done, text = self._replaced[offset]
                pieces.append(text)
        pieces.append(self._raw[done:])
        return b"".join(pieces).decode()

    def _inserted(self, offset: int) -> list[bytes]:
        """Return the insertions at an offset in the order of the edited text."""
        ended = sorted(self._closing.get(offset, []), key=_by_other_end)
        begun = sorted(self._opening.get(offset, []), key=_by_other_end, reverse=True)
        return [
            *(one.text for one in reversed(ended)),
            *self._before.get(offset, []),
            *(one.text for one in begun),
            *reversed(self._last.get(offset, [])),
        ]


def _by_other_end(half: _Half) -> int:
    return half.other_end
