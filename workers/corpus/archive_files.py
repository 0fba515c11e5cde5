"""The files found in an archive so far.

Decides which members are read, which names they get, and how much text is held in memory.
``archive_tar.py`` and ``archive_zip.py`` read the members.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from workers.corpus.archive_streams import StreamLimitError
from workers.corpus.files import (
    LONG_PATH,
    MAX_HEADER_TEXT_BYTES,
    MAX_INCLUDED_BYTES,
    MAX_PATH_CHARS,
    MAX_TEXT_BYTES,
    NESTED,
    MemoryBudget,
    SourceFile,
    header_text,
    held_bytes,
    is_archive_name,
    is_header_name,
    is_hidden,
    is_source_name,
    read_source,
    recorded_path,
)

_DRIVE = re.compile(r"^[A-Za-z]:")


class ArchiveFiles:
    """The files read so far, and the memory budgets for more."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.files: dict[str, SourceFile] = {}
        self.skipped: list[tuple[str, str]] = []
        self._headers: dict[str, str] = {}
        self._budget = MemoryBudget(MAX_TEXT_BYTES)
        self._header_budget = MemoryBudget(MAX_HEADER_TEXT_BYTES)

    def wants(self, name: str, obstacle: str) -> bool:
        """Whether to read a member. An unreadable source or a nested archive is noted as skipped.

        Args:
            name: the member's name in the archive.
            obstacle: why the member cannot be read; empty if it can be read.
        """
        path = _path(name)
        if is_archive_name(path) and not is_hidden(path):
            self.skip(name, NESTED)
            return False
        if not is_source_name(path):
            return is_header_name(path) and not obstacle and not _misplaced(path)
        reason = _misplaced(path) or obstacle
        if reason:
            self.skip(name, reason)
        return not reason

    def add(self, name: str, read: Callable[[int], bytes]) -> None:
        """Read a member for which ``wants`` returned True.

        Raises:
            StreamLimitError: The archive's sources exceed the memory budget.
        """
        path = _path(name)
        if is_header_name(path):
            self._add_header(path, read(MAX_INCLUDED_BYTES + 1))
            return
        file = read_source(read, path=path, suite=self.suite)
        if not self._budget.take(held_bytes(file.text)):
            raise StreamLimitError(f"it has more than {MAX_TEXT_BYTES} bytes of sources")
        self.files[file.path] = file

    def skip(self, name: str, reason: str) -> None:
        """Note a member that is not read, with the reason."""
        self.skipped.append((recorded_path(name[: MAX_PATH_CHARS + 1]), reason))

    def header(self, name: str) -> str | None:
        """Return the text of a member that a source includes; None if there is none."""
        if name in self._headers:
            return self._headers[name]
        file = self.files.get(name)
        return None if file is None or file.text is None else header_text(file.text.encode())

    def _add_header(self, path: str, raw: bytes) -> None:
        text = header_text(raw)
        if text is None:
            return
        if self._header_budget.take(held_bytes(text)):
            self._headers[recorded_path(path)] = text
        else:
            self.skip(path, f"the archive has more than {MAX_HEADER_TEXT_BYTES} bytes of headers")


def _path(name: str) -> str:
    # Programs on Windows write backslashes. No file name on Windows can contain a backslash.
    return name.replace("\\", "/")


def _misplaced(path: str) -> str:
    if len(path) > MAX_PATH_CHARS:
        return LONG_PATH
    parts = PurePosixPath(path)
    leads_out = parts.is_absolute() or ".." in parts.parts or _DRIVE.match(path)
    return "its path leads out of the archive" if leads_out else ""
