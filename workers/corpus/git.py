"""Read the ``.cl`` files of a git directory's HEAD without checking it out.

Decides which files of the commit count, and how much text is held. ``git_directory.py`` reads
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from workers.corpus.files import (
    EXTENSION,
    LINK,
    LONG_PATH,
    MAX_INCLUDED_BYTES,
    MAX_PATH_CHARS,
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
    is_hidden,
    is_source_name,
    read_source,
    recorded_path,
)
from workers.corpus.git_borders import check_borders, check_link
from workers.corpus.git_directory import Blobs, Entry, entries, linked_git_directory
from workers.corpus.includes import remembered, with_includes

_FILE_MODES = frozenset({"100644", "100755", "100664"})
_SUBMODULE = "a submodule: name it as a source of its own"
_REASONS = {"120000": LINK, "160000": _SUBMODULE}


def read_git(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file of the commit at HEAD, its includes replaced by the commit's headers.

    Args:
        source: a git directory, or the ``.git`` file that names one.
        suite: the suite of the kernels; by default the name of the repository or working tree.

    Raises:
        CorpusError: ``git`` is missing, or the repository is damaged or has no commit or no
            ``.cl`` file.
    """
    name = suite or _suite_of(source.resolve())
    folder = linked_git_directory(source) if source.is_file() else source
    assert folder is not None
    check_borders(folder)
    if source.is_file():
        check_link(source, folder)
    wanted, skipped, headers = _sorted_out(entries(folder))
    if not wanted and not skipped:
        raise CorpusError(
            f"{source} has no {EXTENSION} file at HEAD: name a repository of OpenCL sources"
        )
    if not wanted:
        return FoundFiles(files=(), skipped=tuple(skipped))
    with Blobs(folder) as blobs:
        files = list(_contents(folder, blobs, wanted, name))
        included = {recorded_path(one.path): one for one in (*headers, *wanted)}
        return FoundFiles(
            files=with_includes(files, _headers_of(blobs, included)), skipped=tuple(skipped)
        )


def _sorted_out(
    listed: Iterable[Entry],
) -> tuple[list[Entry], list[tuple[str, str]], list[Entry]]:
    wanted, skipped, headers = [], [], []
    for entry in listed:
        reason, is_source = _obstacle(entry), is_source_name(entry.path)
        if reason:
            if is_source or (reason in (NESTED, _SUBMODULE) and not is_hidden(entry.path)):
                skipped.append((recorded_path(entry.path[: MAX_PATH_CHARS + 1]), reason))
        elif is_source:
            wanted.append(entry)
        elif is_header_name(entry.path):
            headers.append(entry)
    return wanted, skipped, headers


def _obstacle(entry: Entry) -> str:
    if len(entry.path) > MAX_PATH_CHARS:
        return LONG_PATH
    if is_archive_name(entry.path):
        return NESTED
    return "" if entry.mode in _FILE_MODES else _REASONS.get(entry.mode, "not a file")


def _headers_of(blobs: Blobs, known: dict[str, Entry]) -> Callable[[str], str | None]:
    def read(name: str) -> str | None:
        if name not in known:
            return None
        return header_text(blobs.read(known[name], MAX_INCLUDED_BYTES + 1))

    return remembered(read)


def _contents(
    source: Path, blobs: Blobs, wanted: Iterable[Entry], suite: str
) -> Iterator[SourceFile]:
    budget = MemoryBudget(MAX_TEXT_BYTES)
    for entry in wanted:
        with blobs.open(entry) as read:
            file = read_source(read, path=entry.path, suite=suite)
        if not budget.take(held_bytes(file.text)):
            raise CorpusError(
                f"{source} has more than {MAX_TEXT_BYTES} bytes of sources: check out the part "
                "that you need into a folder, and name it"
            )
        yield file


def _suite_of(folder: Path) -> str:
    return folder.parent.name if folder.name == ".git" else folder.name.removesuffix(".git")
