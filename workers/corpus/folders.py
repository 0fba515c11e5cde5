"""Read the ``.cl`` files of a folder, or one file that was named directly.

Owns the walk through a folder. Never follows links, so everything read lies below that folder.
``corpus/files.py`` says what a source file is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workers.corpus.files import (
    EXTENSION,
    LINK,
    MAX_INCLUDED_BYTES,
    MAX_TEXT_BYTES,
    NESTED,
    CorpusError,
    FoundFiles,
    MemoryBudget,
    SourceFile,
    header_text,
    held_bytes,
    is_archive_name,
    is_header_name,
    is_source_name,
    read_source,
    recorded_name,
    recorded_path,
)
from workers.corpus.git_directory import is_git_directory
from workers.corpus.includes import remembered, with_includes


@dataclass(frozen=True, slots=True)
class _Listing:
    """Paths below a folder, relative to it."""

    sources: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_alone(source: Path, suite: str | None) -> FoundFiles:
    """Read one file that was named directly; a file that is not a text is an error here.

    Raises:
        CorpusError: The file cannot be read, or is not a text.
    """
    try:
        with source.open("rb") as stream:
            found = read_source(
                stream.read, path=source.name, suite=suite or source.resolve().parent.name
            )
    except OSError as error:
        raise CorpusError(f"{source}: cannot be read: {error.strerror}") from None
    if found.text is None:
        raise CorpusError(
            f"{source}: {found.problem}: name an OpenCL source, a folder or archive of them, "
            "or a corpus"
        )
    return FoundFiles(files=with_includes([found], _headers_beside(source)), skipped=())


def read_folder(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file below a folder, except below names that begin with a dot.

    Raises:
        CorpusError: The folder cannot be listed, has no ``.cl`` file, or has too much text.
    """
    name = suite or source.resolve().name
    found = _listing(source)
    if not found.sources and not found.skipped:
        raise CorpusError(
            f"{source} has no {EXTENSION} file in it or below it: name a folder of OpenCL sources"
        )
    budget = MemoryBudget(MAX_TEXT_BYTES)
    files = []
    for path in sorted(found.sources):
        file = _read_one(source / path, path, name)
        if not budget.take(held_bytes(file.text)):
            raise CorpusError(
                f"{source} has more than {MAX_TEXT_BYTES} bytes of sources: build a corpus from "
                "each of its folders, then one from those corpora"
            )
        files.append(file)
    headers = {recorded_name(path): source / path for path in (*found.headers, *found.sources)}
    return FoundFiles(
        files=with_includes(files, _headers_among(headers)), skipped=tuple(sorted(found.skipped))
    )


def _listing(top: Path) -> _Listing:
    found = _Listing()
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(top / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if _enter(entry, path, found):
                        pending.append(path)
        except OSError as error:
            if not folder:
                raise CorpusError(
                    f"{top}: cannot list the folder: {error.strerror}: "
                    "name another folder, or change its permissions"
                ) from None
            reason = f"the folder cannot be listed: {error.strerror}"
            found.skipped.append((recorded_path(folder), reason))
    return found


def _enter(entry: os.DirEntry[str], path: str, found: _Listing) -> bool:
    """Add one entry of a folder to ``found``; return whether the entry is a folder to list, too."""
    reason = ""
    if entry.name.startswith("."):
        return False
    if entry.is_symlink():
        # Path.is_dir raises if a link's target may not be examined.
        is_folder = os.path.isdir(entry.path)
        reason = LINK if is_folder or is_source_name(path) else ""
    elif entry.is_dir(follow_symlinks=False):
        if not is_git_directory(Path(entry.path)):
            return True
        reason = "a git directory: name it as a source of its own"
    elif is_source_name(path):
        if entry.is_file(follow_symlinks=False):
            found.sources.append(path)
        else:
            reason = "neither a file nor a folder"
    elif is_header_name(path) and entry.is_file(follow_symlinks=False):
        found.headers.append(path)
    elif is_archive_name(path):
        reason = NESTED
    if reason:
        found.skipped.append((recorded_path(path), reason))
    return False


def _headers_among(paths: dict[str, Path]) -> Callable[[str], str | None]:
    return remembered(lambda name: _header(paths[name]) if name in paths else None)


def _headers_beside(source: Path) -> Callable[[str], str | None]:
    # The folder of a file that was named directly may be huge (such as a home). So do not list it.
    root = source.parent.resolve()

    def look_up(name: str) -> str | None:
        path = root / name
        return _header(path) if os.path.realpath(path) == str(path) else None

    return look_up


def _header(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return header_text(stream.read(MAX_INCLUDED_BYTES + 1))
    except OSError:
        return None


def _read_one(path: Path, relative: str, suite: str) -> SourceFile:
    try:
        with path.open("rb") as stream:
            return read_source(stream.read, path=relative, suite=suite)
    except OSError as error:
        return SourceFile(
            path=recorded_path(relative),
            suite=recorded_name(suite),
            sha256=hashlib.sha256(b"").hexdigest(),
            text=None,
            problem=f"the file cannot be read: {error.strerror}",
        )
