"""Decide what a SRC of the command line is: a file, a folder, an archive or a git directory.

Owns only this decision.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workers.corpus.archives import read_archive
from workers.corpus.files import CorpusError, FoundFiles, is_archive_name
from workers.corpus.folders import read_alone, read_folder
from workers.corpus.git import read_git
from workers.corpus.git_directory import is_git_directory, linked_git_directory


def find_sources(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file of one SRC, its includes replaced by the SRC's headers.

    Args:
        source: a ``.cl`` file, a folder (with all folders below), a tar or zip archive, or a git
            directory (``X.git``, whose HEAD is read). A working tree with ``.git`` is a folder.
        suite: the suite of its kernels; by default the folder's or the archive's name.

    Raises:
        CorpusError: The SRC is missing, unreadable or damaged, or has no ``.cl`` file.
    """
    return _reader_of(source)(source, suite)


def _reader_of(source: Path) -> Callable[[Path, str | None], FoundFiles]:
    if source.is_dir():
        return read_git if is_git_directory(source) else read_folder
    if source.is_file():
        if is_archive_name(source.name):
            return read_archive
        return read_alone if linked_git_directory(source) is None else read_git
    what = "is neither a file nor a folder" if source.exists() else "does not exist"
    raise CorpusError(
        f"{source} {what}: name an OpenCL source, a folder or archive of them, or a corpus"
    )
