"""What git may use: hostile repositories make it work without end, and it must not outlive us."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from workers.corpus import git_directory, git_process
from workers.corpus.files import CorpusError
from workers.corpus.git_directory import Blobs, Entry, entries
from workers.corpus.sources import find_sources

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs the git command")
KERNEL = b"__kernel void v(__global int *x) { x[get_global_id(0)] = 1; }\n"


def git(folder: Path, *words: str, given: bytes = b"") -> str:
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ("git", *who, "-C", str(folder), *words),
        input=given, check=True, capture_output=True, env={**os.environ, **quiet},
    )  # fmt: skip
    return done.stdout.decode().strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository without a commit."""
    git(tmp_path, "init", "-q", "mine")
    return tmp_path / "mine"


def commit(root: Path, *lines: str) -> Path:
    """Commit a tree with these entries."""
    tree = git(root, "mktree", given="".join(f"{line}\n" for line in lines).encode())
    git(root, "update-ref", "HEAD", git(root, "commit-tree", "-m", "x", tree))
    return root / ".git"


def tree_of_trees(root: Path) -> Path:
    """Commit 10^10 empty trees, in 10 objects."""
    blob = git(root, "hash-object", "-w", "--stdin", given=KERNEL)
    tree = git(root, "mktree")
    for _ in range(10):
        lines = (f"040000 tree {tree}\td{number}\n" for number in range(10))
        tree = git(root, "mktree", given="".join(lines).encode())
    return commit(root, f"100644 blob {blob}\ta.cl", f"040000 tree {tree}\tz")


def header(kind: int, size: int) -> bytes:
    """Return the header of an object in a pack."""
    out, byte, size = bytearray(), (kind << 4) | (size & 15), size >> 4
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    return bytes([*out, byte])


def number(value: int) -> bytes:
    """Return a number as a delta holds it."""
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])


def deltas_against_large_objects(root: Path, num_files: int) -> Path:
    """Commit files that are deltas against one of two objects of 160 MB, in turns.

    Git keeps objects of up to 96 MB that it has inflated, so these are inflated for each file.
    """
    size = 160 * 2**20
    files, large = [], [one * size for one in (b"\0", b"x")]
    packed = [header(3, size) + zlib.compress(one, 1) for one in large]
    bases = [hashlib.sha1(b"blob %d\0" % size + one).digest() for one in large]
    for index in range(num_files):
        text = b"__kernel void v%d(__global int *x) { x[0] = 1; }" % index
        delta = number(size) + number(len(text)) + bytes([len(text)]) + text
        packed.append(header(7, len(delta)) + bases[index % 2] + zlib.compress(delta))
        name = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
        files.append(f"100644 blob {name}\tk{index:03d}.cl")
    pack = b"PACK" + struct.pack(">II", 2, len(packed)) + b"".join(packed)
    path = root / ".git/objects/pack/pack-1.pack"
    path.write_bytes(pack + hashlib.sha1(pack).digest())
    git(root, "index-pack", str(path))
    return commit(root, *files)


def test_a_tree_of_trees_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(git_directory, "MAX_LISTING_S", 1)
    source = tree_of_trees(root)
    with pytest.raises(CorpusError, match="more than 1 s of processor time to list its trees"):
        find_sources(source, None)


def test_files_that_each_inflate_a_large_object_are_given_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(git_directory, "BASE_READING_S", 0.5)
    source = deltas_against_large_objects(root, 24)
    began_s = time.monotonic()
    with pytest.raises(CorpusError, match="more than 1 s of processor time to read its files"):
        find_sources(source, None)
    assert time.monotonic() - began_s < 30


def test_a_silent_git_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(git_process, "_MAX_SILENCE_S", 0.3)
    source = tree_of_trees(root)
    began_s = time.monotonic()
    with pytest.raises(CorpusError, match=r"not answered .* to list its trees: check the disk"):
        list(entries(source))
    assert time.monotonic() - began_s < 8, "git is killed at once"


def test_a_git_with_much_to_complain_about_is_not_given_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    """Broken indexes of packs made git wait at a full pipe; of 8,000, in over 1 MiB."""
    monkeypatch.setattr(git_process, "_MAX_SILENCE_S", 5)
    blob = git(root, "hash-object", "-w", "--stdin", given=KERNEL)
    source = commit(root, f"100644 blob {blob}\ta.cl")
    for index in range(8000):
        (source / f"objects/pack/pack-{index:040x}.idx").write_bytes(b"broken" * 300)
        (source / f"objects/pack/pack-{index:040x}.pack").write_bytes(b"PACK")
    assert [one.path for one in entries(source)] == ["a.cl"]


def test_git_has_limits_which_grow_with_what_it_reads(root: Path):
    """A tree of 3 MB, packed, took 3 GiB to list."""
    blob = git(root, "hash-object", "-w", "--stdin", given=KERNEL)
    source = commit(root, f"100644 blob {blob}\ta.cl")
    with Blobs(source) as blobs:
        assert blobs.read(Entry(mode="100644", object_id=blob, path="a.cl"), 99) == KERNEL
        pid = blobs._process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        assert soft == hard == 2**30
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == (2**20, 2**20)
        before, _ = resource.prlimit(pid, resource.RLIMIT_CPU)
        blobs._num_bytes += 2**30
        blobs.read(Entry(mode="100644", object_id=blob, path="a.cl"), 99)
        after, _ = resource.prlimit(pid, resource.RLIMIT_CPU)
    assert 60 <= before <= 62
    assert after >= before + 59


def test_git_ends_with_its_parent(root: Path):
    """A build of a corpus that got SIGTERM left git running."""
    source = tree_of_trees(root)
    script = (
        "import sys; from workers.corpus.git_process import GitProcess; from pathlib import Path; "
        "one = GitProcess(Path(sys.argv[1]), 'ls-tree', '-r', 'HEAD:z', doing='', cpu_s=60); "
        "print(one.pid, flush=True); one.piece()"
    )
    parent = subprocess.Popen(
        (sys.executable, "-c", script, str(source)), stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until_s = time.monotonic() + 20
        while b"ls-tree\0-r" not in command_of(pid) or b"git_start" in command_of(pid):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        parent.send_signal(signal.SIGTERM)
    while b"ls-tree" in command_of(pid):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def command_of(pid: int) -> bytes:
    """Return a process's command line; b"" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
