"""Collect insertions into a text by offset, and apply them at once.

Insertions nest: if two begin at the same offset, the one that was recorded first is the outer one.
"""

from __future__ import annotations


class Edits:
    """Edits of one text by byte offsets. The caller must not let replacements overlap."""

    def __init__(self, text: str) -> None:
        self._raw = text.encode()
        self._before: dict[int, list[bytes]] = {}
        self._after: dict[int, list[bytes]] = {}
        self._replaced: dict[int, tuple[int, bytes]] = {}

    @property
    def raw(self) -> bytes:
        """The text as UTF-8; all offsets count its bytes."""
        return self._raw

    def insert(self, offset: int, text: str) -> None:
        """Insert before the byte at ``offset``, inside earlier insertions there."""
        self._before.setdefault(offset, []).append(text.encode())

    def close(self, offset: int, text: str) -> None:
        """Insert after something that ends at ``offset``, outside later insertions there."""
        self._after.setdefault(offset, []).append(text.encode())

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
        for offset in sorted({*self._before, *self._after, *self._replaced}):
            if offset < done:
                continue  # inside a replaced piece
            pieces.append(self._raw[done:offset])
            pieces += reversed(self._after.get(offset, []))
            pieces += self._before.get(offset, [])
            done = offset
            if offset in self._replaced:
                done, text = self._replaced[offset]
                pieces.append(text)
        pieces.append(self._raw[done:])
        return b"".join(pieces).decode()
