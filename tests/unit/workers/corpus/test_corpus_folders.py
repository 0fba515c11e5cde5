"""Folders as sources: what the walk reads, what it passes over and says so, and that it stays inside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.corpus import folders as corpus_folders
from workers.corpus.files import LINK, NESTED, CorpusError, held_bytes
from workers.corpus.sources import find_sources

VADD = "__kernel void vadd(__global float *a) { a[get_global_id(0)] += 1; }\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one kernel."""
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "a.cl").write_text(VADD)
    return folder


def paths(source: Path) -> list[str]:
    return [one.path for one in find_sources(source, None).files]


def test_a_fifo_named_like_a_source_is_not_waited_for(root: Path):
    os.mkfifo(root / "pipe.cl")
    os.mkfifo(root / "pipe.h")
    (root / "b.cl").write_text('#include "pipe.h"\n')
    found = find_sources(root, None)
    assert [one.path for one in found.files] == ["a.cl", "b.cl"]
    assert found.skipped == (("pipe.cl", "neither a file nor a folder"),)


def test_a_file_of_a_tebibyte_is_not_read_to_its_end(root: Path):
    with (root / "sparse.cl").open("wb") as file:
        file.truncate(2**40)
    began_s = time.process_time()
    large = find_sources(root, None).files[1]
    assert time.process_time() - began_s < 5
    assert large.text is None
    assert large.problem is not None
    assert re.match(r"the file has at least 26\d{7} bytes, more than 8388608", large.problem)


def test_links_are_not_followed(root: Path):
    (root.parent / "outside.cl").write_text(VADD)
    (root / "link.cl").symlink_to("../outside.cl")
    (root / "inside.cl").symlink_to("a.cl")
    (root / "gone.cl").symlink_to("nowhere")
    (root / "everything").symlink_to("/")
    (root / "round").symlink_to("round")
    (root / "data.bin").symlink_to("a.cl")
    found = find_sources(root, None)
    assert [one.path for one in found.files] == ["a.cl"]
    names = ("everything", "gone.cl", "inside.cl", "link.cl")
    assert found.skipped == tuple((name, LINK) for name in names)
    named = root.parent / "named"
    named.symlink_to(root)
    assert paths(named) == ["a.cl"]


def test_archives_and_repositories_inside_are_said_to_be_left_out(root: Path):
    for folder in ("old.git", ".git"):
        for part in ("objects", "refs"):
            (root / folder / part).mkdir(parents=True)
        (root / folder / "HEAD").write_text("ref: refs/heads/main\n")
        (root / folder / "x.cl").write_text(VADD)
    (root / "deep").mkdir()
    (root / "deep" / "more.tar.xz").touch()
    (root / ".hidden.zip").touch()
    found = find_sources(root, None)
    assert [one.path for one in found.files] == ["a.cl"]
    assert found.skipped == (
        ("deep/more.tar.xz", NESTED),
        ("old.git", "a git directory: name it as a source of its own"),
    )


def test_a_folder_nested_beyond_any_stack_is_walked(root: Path):
    here = os.open(root, os.O_RDONLY)
    depth = 1050
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with os.fdopen(os.open("k.cl", os.O_WRONLY | os.O_CREAT, dir_fd=here), "w") as stream:
        stream.write(VADD)
    os.close(here)
    try:
        assert paths(root) == ["a.cl", "d/" * depth + "k.cl"]
    finally:
        # pytest removes old temporary folders with a function that recurses, at the start of a later session.
        subprocess.run(["rm", "-rf", str(root / "d")], check=True)


@pytest.fixture
def forbidden(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that cannot be listed, whichever user runs the test."""
    folder = root / "private"
    folder.mkdir()
    scandir = os.scandir

    def refusing(path: Path):
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return folder


def test_a_folder_that_cannot_be_listed_costs_itself(root: Path, forbidden: Path):
    found = find_sources(root, None)
    assert [one.path for one in found.files] == ["a.cl"]
    assert found.skipped == (("private", "the folder cannot be listed: Permission denied"),)
    with pytest.raises(CorpusError, match="private: cannot list the folder: Permission denied"):
        find_sources(forbidden, None)


def test_names_that_are_no_unicode(tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    (folder / os.fsdecode(b"\xe8")).mkdir(parents=True)
    (folder / os.fsdecode(b"\xe8") / "k.cl").write_text('#include "t.h"\n')
    (folder / os.fsdecode(b"\xe8") / "t.h").write_text("// t\n")
    (file,) = find_sources(folder, None).files
    assert (file.suite, file.path, file.text) == ("caf\ufffd", "\ufffd/k.cl", "// t\n\n")
    (alone,) = find_sources(folder / os.fsdecode(b"\xe8") / "k.cl", None).files
    assert (alone.suite, alone.text) == ("\ufffd", "// t\n\n")
    assert find_sources(folder, os.fsdecode(b"\xe9")).files[0].suite == "\ufffd"


def test_a_folder_with_more_text_than_can_be_held_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    (root / "b.cl").write_text(VADD)
    monkeypatch.setattr(corpus_folders, "MAX_TEXT_BYTES", 2 * held_bytes(VADD))
    assert len(paths(root)) == 2
    (root / "c.cl").write_text(VADD)
    with pytest.raises(CorpusError, match="bytes of sources: build a corpus from each"):
        find_sources(root, None)


def test_the_same_tree_is_the_same_as_a_folder_an_archive_and_a_commit(root: Path):
    (root / ".hidden").mkdir()
    (root / ".hidden" / "x.cl").write_text(VADD)
    (root / ".hidden" / "x.h").write_text("// hidden\n")
    (root / "deep").mkdir()
    (root / "deep" / "k.cl").write_text(
        '#include "t.h"\n#include "link.h"\n#include ".hidden/x.h"\n#include "../a.cl"\n'
    )
    (root / "t.h").write_text("// t\n")
    (root / "deep" / "link.h").symlink_to("../t.h")
    (root / "link.cl").symlink_to("a.cl")
    (root / "in.zip").touch()
    with tarfile.open(root.parent / "suite.tar.gz", "w:gz") as archive:
        archive.add(root, "")
    folder = find_sources(root, None)
    assert {one.path: one.text for one in folder.files} == {
        "a.cl": VADD,
        "deep/k.cl": f'// t\n\n#include "link.h"\n#include ".hidden/x.h"\n{VADD}\n',
    }
    assert folder.skipped == (("in.zip", NESTED), ("link.cl", LINK))
    others = [root.parent / "suite.tar.gz"]
    if shutil.which("git") is not None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
            subprocess.run(("git", *who, "-C", str(root), *words), check=True, capture_output=True)
        others.append(root / ".git")
    for other in others:
        found = find_sources(other, None)
        assert sorted(found.files, key=lambda one: one.path) == list(folder.files)
        assert sorted(found.skipped) == list(folder.skipped)
