"""Read the ``.cl`` files of a git directory's HEAD without checking it out.

Owns the door to the ``git`` command: two plumbing commands that run no hook, no filter and no remote helper,
whatever the repository's own configuration says.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from workers.corpus_files import (
    EXTENSION,
    MAX_INCLUDED_BYTES,
    MAX_MEMBERS,
    MAX_TEXT_BYTES,
    CorpusError,
    FoundFiles,
    SourceFile,
    header_text,
    is_header_name,
    is_source_name,
    read_source,
    recorded_path,
)

_FILE_MODES = frozenset({"100644", "100755", "100664"})
_REASONS = {"120000": "a symbolic link: not followed", "160000": "a submodule: not read"}
_READ_BYTES = 1 << 16
_MAX_ENTRY_BYTES = 1 << 20
_MESSAGE_CHARS = 500
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    mode: str
    object_id: str
    path: str


def is_git_directory(folder: Path) -> bool:
    """Whether ``folder`` is what git calls a git directory: a bare repository, or a ``.git`` folder itself."""
    return (folder / "HEAD").is_file() and all(
        (folder / name).is_dir() for name in ("objects", "refs")
    )


def read_git(source: Path, suite: str | None) -> FoundFiles:
    """Read every ``.cl`` file of the commit that HEAD names.

    Raises:
        CorpusError: ``git`` is missing, the repository is damaged or has no commit, or no ``.cl`` file.
    """
    name = suite or _suite_of(source.resolve())
    wanted, skipped, headers = [], [], []
    for entry in _entries(source):
        if is_header_name(entry.path) and entry.mode in _FILE_MODES:
            headers.append(entry)
        elif is_source_name(entry.path):
            reason = "" if entry.mode in _FILE_MODES else _REASONS.get(entry.mode, "no file")
            if reason:
                skipped.append((recorded_path(entry.path), reason))
            else:
                wanted.append(entry)
    files = tuple(_contents(source, wanted, name)) if wanted else ()
    if not files and not skipped:
        raise CorpusError(
            f"{source} has no {EXTENSION} file at HEAD: name a repository of OpenCL sources"
        )
    header = _headers(source, [*headers, *wanted])
    return FoundFiles(files=files, skipped=tuple(skipped), header=header)


def _headers(source: Path, entries: Sequence[_Entry]) -> Callable[[str], str | None]:
    objects = {one.path: one.object_id for one in entries}

    @cache
    def look_up(name: str) -> str | None:
        if name not in objects:
            return None
        with _start(source, "cat-file", "blob", objects[name]) as process:
            assert process.stdout is not None
            raw = process.stdout.read(MAX_INCLUDED_BYTES + 1)
            _end(process)
            return header_text(raw) if process.returncode == 0 else None

    return look_up


def _suite_of(folder: Path) -> str:
    return folder.parent.name if folder.name == ".git" else folder.name.removesuffix(".git")


def _start(source: Path, *arguments: str) -> subprocess.Popen[bytes]:
    # An explicit --git-dir needs no safe.directory. Objects that a partial clone left out are not fetched: the
    # repository's own configuration could name any program as the helper that fetches them.
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
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
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CorpusError(
            f"{source}: the git command is not installed: install it, or name an archive or a folder"
        ) from None


def _entries(source: Path) -> Iterator[_Entry]:
    with _start(source, "ls-tree", "-r", "-z", "--full-tree", "HEAD") as process:
        assert process.stdout is not None
        num_entries = 0
        try:
            for line in _records(process.stdout):
                facts, _, path = line.partition(b"\t")
                mode, _, object_id = facts.decode("ascii", "replace").split(" ", 2)
                num_entries += 1
                if num_entries > MAX_MEMBERS:  # a tree of trees can unfold to billions
                    raise CorpusError(f"{source} has more than {MAX_MEMBERS} files at HEAD")
                yield _Entry(
                    mode=mode, object_id=object_id, path=path.decode("utf-8", "surrogateescape")
                )
        finally:
            _end(process)
        if process.returncode:
            raise CorpusError(
                f"{source}: git cannot list HEAD: {_words(process)}: give it a commit"
            )


def _records(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while piece := os.read(stream.fileno(), _READ_BYTES):
        *lines, rest = (rest + piece).split(b"\0")
        if len(rest) > _MAX_ENTRY_BYTES:
            raise CorpusError("git lists a path of more than a megabyte: not read")
        yield from lines


def _contents(source: Path, entries: list[_Entry], suite: str) -> Iterator[SourceFile]:
    text_bytes = 0
    with _start(source, "cat-file", "--batch") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for entry in entries:
                process.stdin.write(entry.object_id.encode() + b"\n")
                process.stdin.flush()
                file = _one(source, process.stdout, entry, suite)
                text_bytes += len(file.text or "")
                if text_bytes > MAX_TEXT_BYTES:
                    raise CorpusError(f"{source} has more than {MAX_TEXT_BYTES} bytes of sources")
                yield file
        except BrokenPipeError:
            raise CorpusError(
                f"{source}: git ended while reading: check it with `git fsck`"
            ) from None
        finally:
            _end(process)


def _one(source: Path, stream: IO[bytes], entry: _Entry, suite: str) -> SourceFile:
    header = stream.readline(_MAX_ENTRY_BYTES).split()
    if len(header) != 3 or header[1] != b"blob":
        raise CorpusError(
            f"{source}: git cannot read {recorded_path(entry.path)} (object {entry.object_id}): "
            "the repository is damaged or a partial clone; check it with `git fsck`"
        )
    left = int(header[2])

    def read(size: int) -> bytes:
        nonlocal left
        piece = stream.read(min(size, left))
        left -= len(piece)
        return piece

    file = read_source(read, path=entry.path, suite=suite)
    if left or stream.read(1) != b"\n":
        raise CorpusError(
            f"{source}: git ended in the middle of {file.path}: check it with `git fsck`"
        )
    return file


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()  # a git that still writes ends by SIGPIPE
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _words(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    text = process.stderr.read(_MESSAGE_CHARS * 4).decode("utf-8", "replace")
    return " ".join(text.split())[:_MESSAGE_CHARS] or f"status {process.returncode}"
