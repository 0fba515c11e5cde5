"""Read a git directory's HEAD without checking it out.

Owns the choice of the ``git`` commands: two plumbing commands that run no hook, filter or remote
helper, whatever the repository's configuration says. ``git_process.py`` runs them within limits;
``corpus/git.py`` decides which files count.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from workers.corpus.archive_streams import MAX_UNPACKED_BYTES
from workers.corpus.files import MAX_MEMBERS, CorpusError, recorded_path
from workers.corpus.git_process import GitProcess

_READ_BYTES = 1 << 16
_MAX_ENTRY_BYTES = 1 << 20
_MAX_LINK_BYTES = 1 << 13
MAX_LISTING_S = 30
"""Maximum seconds of processor time to list the files of a commit. Linux' 80,000 files take less
than a second; a tree of trees of 250 KB would take years and print nothing."""
BASE_READING_S = 60
_READING_S_PER_GIB = 60
_READING_S_PER_FILE = 0.001
"""Seconds of processor time to read files: at the start, for each GiB, and for each file. Git
inflates a GiB in about 4 s and finds a small file in 0.1 ms. A pack of 1 MB may hold thousands of
files that are each a delta against one object of 400 MB, which takes 0.3 s for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a commit."""

    mode: str
    object_id: str
    path: str


def is_git_directory(folder: Path) -> bool:
    """Whether ``folder`` is a git directory: a bare repository, or that of a working tree."""
    try:
        return (folder / "HEAD").is_file() and (
            (folder / "commondir").is_file()
            or ((folder / "objects").is_dir() and (folder / "refs").is_dir())
        )
    except OSError:
        return False


def linked_git_directory(file: Path) -> Path | None:
    """Return the git directory that a worktree's or submodule's ``.git`` file names, else None.

    Raises:
        CorpusError: The file names no git directory.
    """
    if file.name != ".git":
        return None
    with file.open("rb") as stream:
        key, _, value = stream.read(_MAX_LINK_BYTES).partition(b":")
    if key != b"gitdir":
        return None
    folder = file.parent / os.fsdecode(value.strip().split(b"\0")[0])
    if not is_git_directory(folder):
        raise CorpusError(
            f"{file} names {folder}, which is not a git directory: run `git worktree repair`"
        )
    return folder


def entries(source: Path) -> Iterator[Entry]:
    """Yield every file of the commit that HEAD names.

    Raises:
        CorpusError: ``git`` is missing, the repository is damaged, has no commit or too many files.
    """
    command = ("ls-tree", "-r", "-z", "--full-tree", "HEAD")
    with GitProcess(source, *command, doing="list its trees", cpu_s=MAX_LISTING_S) as process:
        for number, line in enumerate(_records(process)):
            facts, _, path = line.partition(b"\t")
            mode, _, object_id = facts.decode("ascii", "replace").split(" ", 2)
            if number >= MAX_MEMBERS:  # a tree of trees can unpack to billions
                raise CorpusError(
                    f"{source} has more than {MAX_MEMBERS} files at HEAD: check out the part that "
                    "you need into a folder, and name it"
                )
            yield Entry(
                mode=mode, object_id=object_id, path=path.decode("utf-8", "surrogateescape")
            )
        complaint = process.complaint()
        if complaint:
            raise CorpusError(
                f"{source}: git cannot list HEAD: {complaint}: "
                "the repository needs at least one commit"
            )


def _records(process: GitProcess) -> Iterator[bytes]:
    rest = b""
    while piece := process.piece():
        *lines, rest = (rest + piece).split(b"\0")
        if len(rest) > _MAX_ENTRY_BYTES:
            raise CorpusError("git lists a path of more than a megabyte: not read")
        yield from lines


class Blobs:
    """A git process that returns the contents of files; a context manager that ends the process."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._num_bytes = 0
        self._num_files = 0
        self._process = GitProcess(
            source, "cat-file", "--batch", doing="read its files", cpu_s=BASE_READING_S
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.__exit__(*error)

    def read(self, entry: Entry, num_bytes: int) -> bytes:
        """Return the first bytes of a file."""
        with self.open(entry) as read:
            return read(num_bytes)

    @contextlib.contextmanager
    def open(self, entry: Entry) -> Iterator[Callable[[int], bytes]]:
        """Return a function that reads a file's next bytes.

        Raises:
            CorpusError: The object is missing or damaged, git has ended, or the total is too large.
        """
        left = self._ask(entry)

        def read(size: int) -> bytes:
            nonlocal left
            piece = self._process.read(min(size, left))
            left -= len(piece)
            return piece

        yield read
        while left and read(_READ_BYTES):
            pass
        if left or self._process.read(1) != b"\n":
            raise CorpusError(
                f"{self._source}: git ended in the middle of {recorded_path(entry.path)}: "
                "check it with `git fsck`"
            )

    def _ask(self, entry: Entry) -> int:
        if not self._process.send(entry.object_id.encode()):
            raise CorpusError(f"{self._source}: git ended while reading: check it with `git fsck`")
        answer = self._process.line(_MAX_ENTRY_BYTES).split()
        if len(answer) != 3 or answer[1] != b"blob":
            raise CorpusError(
                f"{self._source}: git cannot read {recorded_path(entry.path)} "
                f"(object {entry.object_id}): "
                "the repository is damaged or a partial clone; check it with `git fsck`"
            )
        self._num_bytes += int(answer[2])
        if self._num_bytes > MAX_UNPACKED_BYTES:
            raise CorpusError(
                f"{self._source}: its sources unpack to more than {MAX_UNPACKED_BYTES} bytes, so "
                "it was not read: check out the part that you need into a folder, and name it"
            )
        self._num_files += 1
        self._process.allow(
            BASE_READING_S
            + self._num_bytes / 2**30 * _READING_S_PER_GIB
            + self._num_files * _READING_S_PER_FILE
        )
        return int(answer[2])
