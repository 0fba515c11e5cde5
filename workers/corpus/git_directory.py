"""Read a git directory's HEAD without checking it out.

Owns all use of the ``git`` command: two plumbing commands that run no hook, filter or remote
helper, whatever the repository's configuration says. ``corpus/git.py`` decides which files count.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from workers.corpus.archive_streams import MAX_UNPACKED_BYTES
from workers.corpus.files import MAX_MEMBERS, CorpusError, recorded_path
from workers.sandbox.child_environment import child_environment

_READ_BYTES = 1 << 16
_MAX_ENTRY_BYTES = 1 << 20
_MAX_LINK_BYTES = 1 << 13
_MESSAGE_CHARS = 500
_END_TIMEOUT_S = 10.0
_MAX_MEMORY_BYTES = 2**30
"""Memory limit of a git process in bytes; listing half a million files takes a tenth of this."""


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


def _start(source: Path, *arguments: str) -> subprocess.Popen[bytes]:
    # An explicit --git-dir needs no safe.directory. Objects that a partial clone lacks are not
    # fetched: the repository's configuration could name any program as the helper to fetch them.
    environment = {
        **child_environment(),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    command = ("git", "--no-pager", f"--git-dir={source.resolve()}", *arguments)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CorpusError(
            f"{source}: the git command is not installed: install it, or name an archive or "
            "a folder"
        ) from None
    # The limit leaves out mapped packs. It covers the memory to which a tree of 3 MB may unpack.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    return process


def entries(source: Path) -> Iterator[Entry]:
    """Yield every file of the commit that HEAD names.

    Raises:
        CorpusError: ``git`` is missing, the repository is damaged, has no commit or too many files.
    """
    with _start(source, "ls-tree", "-r", "-z", "--full-tree", "HEAD") as process:
        assert process.stdout is not None
        num_entries = 0
        try:
            for line in _records(process.stdout):
                facts, _, path = line.partition(b"\t")
                mode, _, object_id = facts.decode("ascii", "replace").split(" ", 2)
                num_entries += 1
                if num_entries > MAX_MEMBERS:  # a tree of trees can unpack to billions
                    raise CorpusError(f"{source} has more than {MAX_MEMBERS} files at HEAD")
                yield Entry(
                    mode=mode, object_id=object_id, path=path.decode("utf-8", "surrogateescape")
                )
        finally:
            _end(process)
        if process.returncode:
            raise CorpusError(
                f"{source}: git cannot list HEAD: {_words(process)}: "
                "the repository needs at least one commit"
            )


def _records(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while piece := os.read(stream.fileno(), _READ_BYTES):
        *lines, rest = (rest + piece).split(b"\0")
        if len(rest) > _MAX_ENTRY_BYTES:
            raise CorpusError("git lists a path of more than a megabyte: not read")
        yield from lines


class Blobs:
    """A git process that returns the contents of files; a context manager that ends the process."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._process = _start(source, "cat-file", "--batch")
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._process:
            _end(self._process)

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
        stream, left = self._process.stdout, self._ask(entry)
        assert stream is not None

        def read(size: int) -> bytes:
            nonlocal left
            piece = stream.read(min(size, left))
            left -= len(piece)
            return piece

        yield read
        while left and read(_READ_BYTES):
            pass
        if left or stream.read(1) != b"\n":
            raise CorpusError(
                f"{self._source}: git ended in the middle of {recorded_path(entry.path)}: "
                "check it with `git fsck`"
            )

    def _ask(self, entry: Entry) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(entry.object_id.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CorpusError(
                f"{self._source}: git ended while reading: check it with `git fsck`"
            ) from None
        answer = self._process.stdout.readline(_MAX_ENTRY_BYTES).split()
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
        return int(answer[2])


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()  # SIGPIPE ends a git that still writes
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _words(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    text = process.stderr.read(_MESSAGE_CHARS * 4).decode("utf-8", "replace")
    return " ".join(text.split())[:_MESSAGE_CHARS] or f"status {process.returncode}"
