"""What a SRC of the command line is: a file, a folder, an archive or a git directory.

Owns that decision and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workers.corpus_archives import is_archive_name, read_archive
from workers.corpus_files import CorpusError, FoundFiles, read_alone, read_folder
from workers.corpus_git import is_git_directory, read_git
from workers.corpus_includes import with_includes


def find_sources(source: Path, suite: str | None) -> FoundFiles:
    """Read one SRC: every ``.cl`` file in it, with the headers of the same SRC that it includes.

    Args:
        source: a ``.cl`` file, a folder (searched to the bottom), a tar or zip archive, or a git directory
            (``X.git``, whose HEAD is read). A working tree with a ``.git`` in it is a folder.
        suite: the suite of its kernels; by default the folder's or the archive's name.

    Raises:
        CorpusError: It is missing, unreadable, damaged, or has no ``.cl`` file.
    """
    if source.is_file():
        reader = read_archive if is_archive_name(source.name) else read_alone
    elif source.is_dir():
        reader = read_git if is_git_directory(source) else read_folder
    else:
        what = "is neither a file nor a folder" if source.exists() else "does not exist"
        raise CorpusError(
            f"{source} {what}: name an OpenCL source, a folder or archive of them, or a corpus"
        )
    found = reader(source, suite)
    return replace(found, files=with_includes(found.files, found.header))
