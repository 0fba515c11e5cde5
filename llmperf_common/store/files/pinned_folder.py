"""A folder that is held open, so that a change is noticed if its path leads to another folder.

Owns the check by which a collector notices an unmount or a move of the folder. ``filesystem.py``
owns the message.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFolder:
    """A folder as it was when opened.

    Attributes:
        descriptor: descriptor of the open folder; the owner of this object closes it.
        base: a path to the folder while the descriptor is open, also after a move or ``umount -l``.
        device: device number of the folder's file system.
        inode: inode number of the folder.
        name: name of a file in the folder that never changes.
        content: content of this file.
    """

    descriptor: int
    base: Path
    device: int
    inode: int
    name: str
    content: bytes

    @classmethod
    def open(cls, root: Path, name: str) -> PinnedFolder:
        """Open ``root``, which has a file ``name``. Raises OSError."""
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            base = Path(f"/proc/self/fd/{descriptor}")
            found, content = os.fstat(descriptor), (base / name).read_bytes()
        except OSError:
            os.close(descriptor)
            raise
        return cls(
            descriptor=descriptor,
            base=base,
            device=found.st_dev,
            inode=found.st_ino,
            name=name,
            content=content,
        )

    def why_lost(self, root: Path) -> str:
        """Return why ``root`` no longer leads to this folder; an empty text if it does."""
        try:
            found = root.stat()
        except OSError as error:
            return f"{error.strerror}{self._whereabouts()}"
        if not self._is_at(found):
            return f"another folder is in its place{self._whereabouts()}"
        try:
            content = (self.base / self.name).read_bytes()
        except OSError as error:
            return f"{self.name}: {error.strerror}"
        return "" if content == self.content else f"its {self.name} has changed"

    def _is_at(self, found: os.stat_result) -> bool:
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def _whereabouts(self) -> str:
        """Return where the folder is now, if it has a path."""
        with contextlib.suppress(OSError):
            now = self.base.readlink()
            if self._is_at(now.stat()):
                return f"; it is now {now}"
        return ""
