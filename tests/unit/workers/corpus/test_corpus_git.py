"""Git directories as sources: HEAD is read without a checkout, and nothing in the repository is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from workers.corpus import git_directory
from workers.corpus.files import CorpusError
from workers.corpus.read import read_sources
from workers.corpus.sources import find_sources

VADD = "__kernel void vadd(__global float *a) { a[get_global_id(0)] += 1; }\n"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs the git command")


def git(folder: Path, *words: str) -> None:
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(
        ("git", *who, "-C", str(folder), *words),
        check=True,
        capture_output=True,
        env={**os.environ, **quiet},
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with one commit."""
    root = tmp_path / "suite-1"
    (root / "deep").mkdir(parents=True)
    (root / "a.cl").write_text(VADD)
    (root / "deep" / "b b.cl").write_text(VADD.replace("vadd", "other"))
    (root / "notes.txt").write_text("no kernel")
    (root / "link.cl").symlink_to("a.cl")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


def bare(tree: Path) -> Path:
    target = tree.with_name("suite-1.git")
    git(tree, "clone", "-q", "--bare", str(tree), str(target))
    return target


def test_a_bare_repository_and_a_git_folder_give_the_commit(tree: Path):
    for source in (bare(tree), tree / ".git"):
        found = find_sources(source, None)
        assert [(one.path, one.suite) for one in found.files] == [
            ("a.cl", "suite-1"),
            ("deep/b b.cl", "suite-1"),
        ]
        assert found.files[0].text == VADD
        assert found.skipped == (("link.cl", "a link: not followed"),)
    assert read_sources([tree / ".git"]).sha256 == read_sources([tree]).sha256


def test_a_working_tree_is_a_folder(tree: Path):
    (tree / "new.cl").write_text(VADD.replace("vadd", "uncommitted"))
    assert "new.cl" in [one.path for one in find_sources(tree, None).files]


def test_the_repository_s_own_configuration_runs_nothing(tree: Path):
    repository = bare(tree)
    mark = tree.parent / "ran"
    program = tree.parent / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "core.sshCommand",
        "core.hooksPath",
        "pager.ls-tree",
    ):
        git(repository, "config", key, str(program))
    (repository / "hooks").mkdir(exist_ok=True)
    shutil.copy(program, repository / "hooks" / "post-checkout")
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "remote.origin.url", f"ext::{program}")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "protocol.ext.allow", "always")
    assert len(find_sources(repository, None).files) == 2
    blob = next(path for path in (repository / "objects").rglob("*") if path.is_file())
    assert blob
    assert not mark.exists()


def remove_objects(repository: Path) -> None:
    for path in (repository / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.unlink()


def remove_blobs(repository: Path) -> None:
    for line in subprocess.run(
        ("git", "--git-dir", str(repository), "ls-tree", "-r", "HEAD"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines():
        name = line.split()[2]
        (repository / "objects" / name[:2] / name[2:]).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove_objects, "git cannot list HEAD"),
        (remove_blobs, "git cannot read a.cl .*damaged or a partial clone"),
        (lambda one: (one / "HEAD").write_text("ref: refs/heads/nothing\n"), "cannot list HEAD"),
        (lambda one: (one / "HEAD").write_text("rubbish"), "cannot list HEAD"),
    ],
)
def test_a_damaged_repository_says_so(tree: Path, damage, words: str):
    damage(tree / ".git")
    with pytest.raises(CorpusError, match=words):
        find_sources(tree / ".git", None)


def test_grafts_that_link_to_another_file_are_not_read(tree: Path):
    secret = tree.parent / "credentials"
    secret.write_text("key = TOPSECRET123\n")
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "grafts").symlink_to(secret)
    remove_objects(tree / ".git")
    with pytest.raises(CorpusError) as refused:
        find_sources(tree / ".git", None)
    assert "TOPSECRET123" not in str(refused.value)


def test_a_repository_without_sources_and_a_missing_git_say_so(
    tree: Path, monkeypatch: pytest.MonkeyPatch
):
    git(tree, "rm", "-q", "-r", "a.cl", "deep", "link.cl")
    git(tree, "commit", "-q", "-m", "two")
    with pytest.raises(CorpusError, match=r"no \.cl file at HEAD"):
        find_sources(tree / ".git", None)
    monkeypatch.setenv("PATH", str(tree))
    with pytest.raises(CorpusError, match="git command is not installed"):
        find_sources(tree / ".git", None)


def test_a_tree_with_too_many_files_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(git_directory, "MAX_MEMBERS", 3)
    with pytest.raises(CorpusError, match="more than 3 files"):
        find_sources(tree / ".git", None)


def test_the_git_file_of_a_worktree_names_its_directory(tree: Path):
    git(tree, "worktree", "add", "-q", "-b", "more", "../linked")
    linked = tree.with_name("linked")
    (linked / "c.cl").write_text(VADD.replace("vadd", "third"))
    git(linked, "add", "c.cl")
    git(linked, "commit", "-q", "-m", "two")
    found = find_sources(linked / ".git", None)
    assert [(one.path, one.suite) for one in found.files] == [
        ("a.cl", "linked"),
        ("c.cl", "linked"),
        ("deep/b b.cl", "linked"),
    ]
    shutil.rmtree(tree / ".git")
    with pytest.raises(CorpusError, match="which is not a git directory"):
        find_sources(linked / ".git", None)


def test_submodules_and_archives_are_said_to_be_left_out(tree: Path):
    git(tree, "clone", "-q", "--bare", str(tree), str(tree.with_name("other.git")))
    (tree / "more.tar.gz").write_bytes(b"")
    allowed = ("-c", "protocol.file.allow=always")
    git(tree, *allowed, "submodule", "--quiet", "add", str(tree.with_name("other.git")), "lib")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "two")
    assert dict(find_sources(tree / ".git", None).skipped) == {
        "lib": "a submodule: name it as a source of its own",
        "link.cl": "a link: not followed",
        "more.tar.gz": "an archive inside another source: name it as a source of its own",
    }


def test_one_process_gives_every_file_and_header(tree: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(40):
        (tree / f"{number}.h").write_text(f"#define N {number}\n")
        (tree / f"{number}.cl").write_text(f'#include "{number}.h"\n{VADD}')
    (tree / "large.h").write_text("//" + " " * 2**19)  # too long to be put in; what follows is read
    (tree / "0.cl").write_text('#include "large.h"\n#include "1.h"\n')
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "two")
    commands = []
    start = git_directory.GitProcess
    monkeypatch.setattr(
        git_directory,
        "GitProcess",
        lambda *words, **how: commands.append(words[1]) or start(*words, **how),
    )
    texts = {one.path: one.text for one in find_sources(tree / ".git", None).files}
    assert texts["39.cl"] == f"#define N 39\n\n{VADD}"
    assert texts["0.cl"] == '#include "large.h"\n#define N 1\n\n'
    assert commands == ["ls-tree", "cat-file"]


def test_a_repository_that_unpacks_too_far_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(git_directory, "MAX_UNPACKED_BYTES", len(VADD))
    with pytest.raises(CorpusError, match="unpack to more than"):
        find_sources(tree / ".git", None)
