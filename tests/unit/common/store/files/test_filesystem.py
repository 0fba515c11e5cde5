"""Atomic creation, locks, and what a user reads when the disk is full or not writable."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmperf_common.store.files.create_once import check_creates_once
from llmperf_common.store.files.filesystem import (
    TEMPORARY_PREFIX,
    PosixFilesystem,
    StoreError,
    StoreLostError,
)


@pytest.fixture
def fs(tmp_path: Path) -> PosixFilesystem:
    return PosixFilesystem(tmp_path / "data")


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_put_if_absent_creates_once_and_keeps_the_first(fs):
    assert fs.put_if_absent("a/b/one", b"first")
    assert not fs.put_if_absent("a/b/one", b"second")
    assert fs.read_bytes("a/b/one") == b"first"
    assert everything_in(fs.root) == ["a/b/one"], "a temporary file was left"


def test_replace_overwrites(fs):
    fs.replace("card", b"1")
    fs.replace("card", b"2")
    assert fs.read_bytes("card") == b"2"
    assert everything_in(fs.root) == ["card"]


def test_names_are_sorted_files_only(fs):
    for name in ("b", "a", "folder/c"):
        fs.put_if_absent(name, b"")
    assert fs.names() == ["a", "b"]
    assert fs.names("folder") == ["c"]
    assert fs.names("no such folder") == []


def test_one_of_many_threads_wins(fs):
    barrier = threading.Barrier(8)
    wins: list[int] = []

    def put(number: int) -> None:
        for name in range(20):
            barrier.wait()
            if fs.put_if_absent(f"race/{name}", str(number).encode()):
                wins.append(name)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(20))


_RACER = """
import sys, time
from pathlib import Path
from llmperf_common.store.files.filesystem import PosixFilesystem
fs = PosixFilesystem(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(sum(fs.put_if_absent(f"race/{i}", sys.argv[2].encode() * 1000) for i in range(100)))
"""


def test_one_of_two_processes_wins_each_name(fs):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(fs.root), letter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for letter in "ab"
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = [int(racer.communicate(timeout=30)[0]) for racer in racers]
    assert sum(wins) == 100
    contents = [fs.read_bytes(f"race/{i}") for i in range(100)]
    assert contents.count(b"a" * 1000) == wins[0]
    assert contents.count(b"b" * 1000) == wins[1]


def test_death_before_the_link_leaves_no_name(fs):
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from llmperf_common.store.files.filesystem import PosixFilesystem\n"
        "os.link = lambda *_: os._exit(9)\n"
        "PosixFilesystem(Path(sys.argv[1])).put_if_absent('x', b'data')\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(fs.root)], check=False)
    assert died.returncode == 9
    (left,) = everything_in(fs.root)
    assert left.startswith(TEMPORARY_PREFIX)
    assert fs.put_if_absent("x", b"again")


def test_a_lock_excludes_and_is_shared(fs):
    with fs.lock(".run.lock", exclusive=False, wait=False) as first:
        with fs.lock(".run.lock", exclusive=False, wait=False) as second:
            assert first
            assert second
        with fs.lock(".run.lock", exclusive=True, wait=False) as alone:
            assert not alone
    with fs.lock(".run.lock", exclusive=True, wait=False) as alone:
        assert alone


def test_a_lock_can_be_asked_for_in_a_read_only_folder(fs):
    with fs.lock(".run.lock", exclusive=True, wait=False):
        pass
    (fs.root / ".run.lock").chmod(0o444)
    fs.root.chmod(0o555)
    try:
        with fs.lock(".run.lock", exclusive=True, wait=False) as alone:
            assert alone
    finally:
        fs.root.chmod(0o755)


def test_a_file_in_the_way_is_a_message(tmp_path):
    (tmp_path / "data").write_text("not a folder")
    fs = PosixFilesystem(tmp_path / "data")
    with pytest.raises(StoreError, match=r"cannot write .*data/a.*choose a folder"):
        fs.put_if_absent("a", b"")
    with (
        pytest.raises(StoreError, match="choose a folder"),
        fs.lock("a", exclusive=True, wait=False),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_a_message(fs):
    fs.root.mkdir()
    fs.root.chmod(0o555)
    with pytest.raises(StoreError, match="choose a folder you may write to"):
        fs.put_if_absent("a", b"")


@contextlib.contextmanager
def tiny_disk(folder: Path):
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("NOT TESTED: a really full disk (mounting a tmpfs needs root)")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is Linux's")
def test_a_full_disk_is_a_message_and_loses_nothing(tmp_path):
    with tiny_disk(tmp_path / "tiny"):
        fs = PosixFilesystem(tmp_path / "tiny" / "data")
        assert fs.put_if_absent("small", b"kept")
        with pytest.raises(StoreError, match=r"no space left to write .*nothing committed is lost"):
            fs.put_if_absent("big", b"x" * 1_000_000)
        with pytest.raises(StoreError, match="no space left"):
            fs.replace("small", b"x" * 1_000_000)
        assert everything_in(fs.root) == ["small"]
        assert fs.read_bytes("small") == b"kept"


def test_a_file_size_limit_is_a_message(fs):
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    PosixFilesystem(Path(sys.argv[1])).put_if_absent('x', b'y' * 5000)\n"
        "except StoreError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(fs.root)], check=True, capture_output=True, text=True
    )
    assert "ulimit -f" in done.stdout
    assert everything_in(fs.root) == []


def test_a_file_system_without_hard_links_is_a_message(fs, monkeypatch):
    def no_link(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(StoreError, match=r"no hard links .*choose a folder on a local disk"):
        check_creates_once(fs)
    assert everything_in(fs.root) == []


# ------------------------------------------------------------------ a folder that is lost


@pytest.fixture
def pinned(tmp_path: Path) -> PosixFilesystem:
    fs = PosixFilesystem(tmp_path / "data")
    fs.put_if_absent("run.json", b"{}")
    fs.pin("run.json")
    return fs


def test_a_folder_that_was_moved_is_named_and_written_to(pinned, tmp_path):
    moved = tmp_path / "moved"
    pinned.root.rename(moved)
    with pytest.raises(StoreLostError, match=f"{pinned.root} is no longer .*it is now {moved}"):
        pinned.check_place()
    assert pinned.put_if_absent("kernels/a", b"x"), "into the folder, wherever it is"
    assert (moved / "kernels" / "a").read_bytes() == b"x"
    with pinned.lock("ledger/.lock", exclusive=True, wait=False) as held:
        assert held
    assert not pinned.root.exists(), "it is not made anew"
    moved.rename(pinned.root)
    pinned.check_place()


def test_another_folder_of_its_name_gets_nothing(pinned, tmp_path):
    pinned.root.rename(tmp_path / "moved")
    pinned.root.mkdir()
    (pinned.root / "run.json").write_bytes(b"{}")
    with pytest.raises(StoreLostError, match="another folder is in its place"):
        pinned.check_place()
    pinned.put_if_absent("kernels/a", b"x")
    assert [path.name for path in pinned.root.iterdir()] == ["run.json"]
    assert pinned.sizes(["kernels/a"]) == {"kernels/a": 1}


def test_a_folder_that_was_removed_is_not_made_anew(pinned):
    shutil.rmtree(pinned.root)
    for write in (
        pinned.check_place,
        lambda: pinned.put_if_absent("kernels/a", b"x"),
        lambda: pinned.replace("README.md", b"x"),
        lambda: pinned.move("a", "trash/a"),
        lambda: pinned.lock("ledger/.lock", exclusive=True, wait=False).__enter__(),
    ):
        with pytest.raises(StoreLostError, match="No such file or directory"):
            write()
    assert not pinned.root.exists()


def test_a_pinned_folder_is_let_go_with_its_file_system(tmp_path):
    def num_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = num_open()
    for _ in range(3):
        fs = PosixFilesystem(tmp_path)
        fs.put_if_absent("run.json", b"{}")
        fs.pin("run.json")
    del fs
    assert num_open() == before


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOSPC])
@pytest.mark.parametrize("step", ["open", "fsync"])
def test_a_temporary_file_that_cannot_be_removed_hides_no_message(
    fs: PosixFilesystem, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    """As when a disk becomes read-only: each later call fails, too."""
    fs.put_if_absent("there", b"")
    fs.pin("there")

    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def failing(path: Path, **_: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, read_only)
        patch.setattr(Path, "unlink", failing)
        with pytest.raises(StoreError, match=f"cannot write {fs.root}/one: Read-only") as told:
            fs.put_if_absent("one", b"1")
    assert "/proc/" not in str(told.value)
