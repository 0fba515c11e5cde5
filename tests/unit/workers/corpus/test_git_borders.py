"""Git directories that lead elsewhere: nothing of another repository is read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from workers.corpus.files import CorpusError
from workers.corpus.sources import find_sources

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs the git command")


def git(folder: Path, *words: str) -> None:
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(
        ("git", *who, "-C", str(folder), *words), check=True, capture_output=True, env={**os.environ, **quiet}
    )  # fmt: skip


def repository(folder: Path, name: str) -> Path:
    root = folder / name
    root.mkdir()
    (root / f"{name}.cl").write_text(f"__kernel void {name}(__global int *x) {{ x[0] = 1; }}\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root / ".git"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return repository(tmp_path, "private")


def refused(folder: Path, words: str) -> None:
    with pytest.raises(CorpusError, match=words):
        find_sources(folder, None)


def test_another_repository_is_not_its_own(tmp_path: Path, private: Path) -> None:
    hostile = tmp_path / "hostile.git"
    hostile.mkdir()
    shutil.copy(private / "HEAD", hostile / "HEAD")
    for text in (str(private), "../private/.git"):
        (hostile / "commondir").write_text(text)
        refused(hostile, "commondir")
    git(private.parent, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "b")
    assert find_sources(private / "worktrees" / "tree", None).files
    assert find_sources(tmp_path / "tree" / ".git", None).files


def test_objects_of_another_repository_are_not_borrowed(tmp_path: Path, private: Path) -> None:
    mine = repository(tmp_path, "mine")
    assert find_sources(mine, None).files
    (mine / "objects" / "info").mkdir(exist_ok=True)
    (mine / "objects" / "info" / "alternates").write_text(f"{private / 'objects'}\n")
    refused(mine, "borrows objects")


@pytest.mark.parametrize("part", ["objects", "refs", "HEAD", "refs/heads"])
def test_parts_are_no_links_to_another_repository(tmp_path: Path, private: Path, part: str) -> None:
    mine = repository(tmp_path, "mine")
    path = mine / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(private / part)
    refused(mine, "leads out of it")


@pytest.mark.parametrize("part", ["packed-refs", "config", "refs/heads/other", "commondir"])
def test_git_waits_for_nothing(tmp_path: Path, part: str) -> None:
    mine = repository(tmp_path, "mine")
    (mine / part).unlink(missing_ok=True)
    os.mkfifo(mine / part)
    refused(mine, "not a regular file")


@pytest.mark.parametrize("part", ["refs/worktree/one", "reftable/tables.list"])
def test_git_waits_for_no_name_of_a_worktrees_commit(
    tmp_path: Path, private: Path, part: str
) -> None:
    git(private.parent, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "b")
    path = private / "worktrees" / "tree" / part
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    refused(private / "worktrees" / "tree", "not a regular file")


def test_a_config_includes_nothing(tmp_path: Path) -> None:
    mine = repository(tmp_path, "mine")
    with (mine / "config").open("a") as file:
        file.write('[includeIf "gitdir:/"]\n\tpath = /etc/passwd\n')
    refused(mine, "includes other files")


def test_a_link_that_the_repository_does_not_know(tmp_path: Path, private: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {private}\n")
    refused(tree / ".git", "does not name this worktree")
    outer = repository(tmp_path, "outer").parent
    git(
        outer,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        str(private.parent),
        "sub",
    )
    assert find_sources(outer / "sub" / ".git", None).files


def pack(folder: Path) -> None:
    git(folder.parent, "gc", "-q")


@pytest.mark.parametrize("is_packed", [False, True])
def test_no_object_lies_in_another_repository(
    tmp_path: Path, private: Path, is_packed: bool
) -> None:
    mine = repository(tmp_path, "mine")
    commit = (private / "refs" / "heads").iterdir().__next__().read_text()
    if is_packed:
        pack(private)
        for file in (private / "objects" / "pack").iterdir():
            (mine / "objects" / "pack" / file.name).symlink_to(file)
    else:
        for fan in (private / "objects").iterdir():
            if len(fan.name) == 2 and not (mine / "objects" / fan.name).exists():
                (mine / "objects" / fan.name).symlink_to(fan)
    next((mine / "refs" / "heads").iterdir()).write_text(commit)
    refused(mine, "is a link that leads out of it")


@pytest.mark.parametrize("is_packed", [False, True])
def test_git_waits_for_no_object(tmp_path: Path, is_packed: bool) -> None:
    mine = repository(tmp_path, "mine")
    if is_packed:
        pack(mine)
        victim = next((mine / "objects" / "pack").glob("*.idx"))
    else:
        fan = next(one for one in (mine / "objects").iterdir() if len(one.name) == 2)
        victim = next(fan.iterdir())
    victim.unlink()
    os.mkfifo(victim)
    refused(mine, "is not a regular file")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config", "[core][include] path = /etc/passwd\n"),
        ("config", "\ufeff[include]\n path = /etc/passwd\n"),
        ("config.worktree", '[includeIf "gitdir:/"]\n path = /etc/passwd\n'),
    ],
)
def test_a_config_includes_nothing_in_any_spelling(tmp_path: Path, name: str, text: str) -> None:
    mine = repository(tmp_path, "mine")
    with (mine / name).open("a", encoding="utf-8") as file:
        file.write(text)
    refused(mine, "includes other files")
