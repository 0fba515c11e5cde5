"""Refuse a git directory that leads elsewhere, before git starts on it.

Owns these checks. A repository can name another repository as its own (``commondir``), borrow
objects (``alternates``), and have links in place of its parts. Then the commit that is read, and
published as a corpus, is not the one that the user named.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from llmperf_common.files.plain_files import UnfitFileError, read_plain
from workers.corpus.files import CorpusError

_MAX_BYTES = 2**20
_MAX_REFS = 200_000
_PARTS = (
    "HEAD",
    "config",
    "config.worktree",
    "commondir",
    "packed-refs",
    "shallow",
    "objects",
    "refs",
    "reftable",
)
_REFS = ("refs", "reftable")
"""Folders of names of commits; a worktree has its own beside those of its repository."""
_OBJECT_PARTS = ("info", "pack", "info/alternates", "info/commit-graph", "pack/multi-pack-index")
_BORROWS = ("info/alternates", "info/http-alternates")
_WORKTREE = re.compile(rb"^\s*worktree\s*=\s*([^\n\0]+)", re.IGNORECASE | re.MULTILINE)
_INCLUDE = re.compile(rb"\[\s*include", re.IGNORECASE)
"""Matches the start of an include section anywhere in a line, because git accepts several sections
on a line, and a leading BOM."""
_CONFIGS = ("config", "config.worktree")
_MAX_OBJECT_FILES = 2_000_000
"""Maximum number of files in a git object folder. A packed repository has a few hundred."""


def check_borders(source: Path) -> None:
    """Check that no part of a git directory leads out of it or can block git.

    Raises:
        CorpusError: A part leads out of the directory, or can block git.
    """
    folder = Path(os.path.realpath(source))
    common = _common_of(folder, source)
    for inside in dict.fromkeys((folder, common)):
        for part in (*_PARTS, *(f"objects/{one}" for one in _OBJECT_PARTS)):
            _check_part(inside / part, inside, source)
        for config in (inside / name for name in _CONFIGS):
            if config.exists() and _INCLUDE.search(_content(config, source)):
                raise CorpusError(
                    f"the git config of {source} includes other files: give a fresh clone of this "
                    "repository instead"
                )
        for part in _REFS:
            _check_all(inside, part, _MAX_REFS, source)
    for name in _BORROWS:
        path = common / "objects" / name
        if path.exists() and _content(path, source).strip():
            raise CorpusError(
                f"{source} borrows objects of another repository (its objects/{name} says so): "
                "give a full copy instead (git clone --no-local --bare)"
            )
    _check_all(common, "objects", _MAX_OBJECT_FILES, source)


def check_link(file: Path, folder: Path) -> None:
    """Check that a git directory names the ``.git`` file that points to it.

    Raises:
        CorpusError: The git directory does not name the file.
    """
    back, config = folder / "gitdir", folder / "config"
    named: list[Path] = []
    if os.path.lexists(back):
        named.append(folder / os.fsdecode(_content(back, file).strip()))
    elif os.path.lexists(config):
        trees = _WORKTREE.findall(_content(config, file))
        named += [folder / os.fsdecode(tree.strip().strip(b'"')) / ".git" for tree in trees]
    if os.path.realpath(file) not in {
        os.path.realpath(one) for one in named if b"\0" not in bytes(one)
    }:
        raise CorpusError(
            f"{file} names {folder}, but that git directory does not name this worktree: run "
            "`git worktree repair`, or give that git directory itself if you want its kernels"
        )


def _common_of(folder: Path, source: Path) -> Path:
    """Return a git directory itself or, if it belongs to a worktree, the worktree's repository."""
    named = folder / "commondir"
    if not os.path.lexists(named):
        return folder
    text = os.fsdecode(_content(named, source).strip())
    common = Path(os.path.realpath(folder / text)) if text and "\0" not in text else folder
    if folder.parent.name != "worktrees" or folder.parent.parent != common:
        raise CorpusError(
            f"{source} names another repository as its own (commondir): "
            "name that repository if you mean it"
        )
    return common


def _check_part(path: Path, inside: Path, source: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise CorpusError(
                f"{source}: {path.name} is a link that leads out of it: name a plain clone"
            )
        mode = path.stat().st_mode if path.exists() else mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise CorpusError(f"{source}: {path.name} is not a regular file: name a plain clone")


def _check_all(common: Path, part: str, most: int, source: Path) -> None:
    """Check every file and folder below a part of the repository; refuse more than ``most``."""
    number = 0
    for place, folders, names in os.walk(common / part):
        for name in (*folders, *names):
            number += 1
            if number > most:
                raise CorpusError(
                    f"{source} has more than {most} files in {part}, so it was not read: give a "
                    "fresh clone of this repository instead"
                )
            _check_part(Path(place) / name, common, source)


def _content(path: Path, source: Path) -> bytes:
    try:
        return read_plain(path, max_bytes=_MAX_BYTES)
    except (OSError, UnfitFileError) as error:
        raise CorpusError(f"{source}: {path.name} cannot be read: {error}") from None
