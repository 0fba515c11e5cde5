"""The contract of each ``Filesystem``; ``test_filesystem_contract.py`` checks it on folders and S3.

``fs`` is a new store for each test; ``again`` opens the same store once more, as another process
would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmperf_common.store.files.create_once import check_creates_once
from llmperf_common.store.files.filesystem import Filesystem, StoreLostError

NUM_RACERS = 16
Again = Callable[[], Filesystem]


class FilesystemContract:
    """One test for each promise."""

    num_many = 1_100
    """A number of objects above one page of an S3 listing."""

    def test_a_name_is_created_once(self, fs: Filesystem) -> None:
        assert fs.put_if_absent("a/b/one", b"first")
        assert not fs.put_if_absent("a/b/one", b"second")
        assert not fs.put_if_absent("a/b/one", b"first"), "equal bytes do not make it ours"
        assert fs.read_bytes("a/b/one") == b"first"
        assert fs.names("a/b") == ["one"]

    def test_one_of_many_racers_wins(self, fs: Filesystem) -> None:
        barrier = threading.Barrier(NUM_RACERS)

        def race(number: int) -> list[str]:
            won = []
            for name in ("race/0", "race/1", "race/2"):
                barrier.wait()
                if fs.put_if_absent(name, f"{number}".encode()):
                    won.append(name)
            return won

        with ThreadPoolExecutor(NUM_RACERS) as pool:
            wins = list(pool.map(race, range(NUM_RACERS)))
        assert sorted(name for won in wins for name in won) == ["race/0", "race/1", "race/2"]
        for number, won in enumerate(wins):
            assert all(fs.read_bytes(name) == f"{number}".encode() for name in won)

    def test_what_one_creates_another_sees_at_once(self, fs: Filesystem, again: Again) -> None:
        fs.put_if_absent("run.json", b"{}")
        assert again().read_bytes("run.json") == b"{}"
        assert again().names() == ["run.json"]

    def test_replace_overwrites(self, fs: Filesystem) -> None:
        fs.replace("card", b"1")
        fs.replace("card", b"2")
        assert fs.read_bytes("card") == b"2"

    def test_reading_what_is_not_there(self, fs: Filesystem) -> None:
        with pytest.raises(FileNotFoundError):
            fs.read_bytes("nothing")
        fs.put_if_absent("folder/file", b"")
        with pytest.raises(FileNotFoundError):
            fs.read_bytes("folder/nothing")

    def test_remove_is_idempotent(self, fs: Filesystem) -> None:
        fs.put_if_absent("gone", b"x")
        fs.remove("gone")
        fs.remove("gone")
        assert fs.names() == []
        assert fs.put_if_absent("gone", b"y"), "a removed name is free"

    def test_sizes(self, fs: Filesystem) -> None:
        fs.put_if_absent("folder/two", b"xx")
        fs.put_if_absent("none", b"")
        sizes = fs.sizes(["folder/two", "none", "absent", "folder"])
        assert sizes == {"folder/two": 2, "none": 0, "absent": None, "folder": None}
        assert fs.sizes([]) == {}

    def test_files_of_equal_content_are_not_the_same(self, fs: Filesystem) -> None:
        for name in ("a/one", "a/two", "b/one"):
            fs.put_if_absent(name, b"same")
        assert not fs.same_files(["a/one", "a/absent"], ["a/two", "b/one", "b/absent"])
        assert not fs.same_files([], ["a/two"])

    def test_move(self, fs: Filesystem) -> None:
        fs.put_if_absent("folder/one", b"x")
        for _ in range(2):  # the second time the file is gone
            fs.move("folder/one", "trash/folder-one")
        assert fs.names("folder") == []
        assert fs.read_bytes("trash/folder-one") == b"x"
        assert fs.put_if_absent("folder/one", b"y"), "its name is free"

    def test_a_pinned_place_must_have_its_file(self, fs: Filesystem, again: Again) -> None:
        fs.check_place()  # not pinned, so no error
        with pytest.raises(StoreLostError):
            fs.pin("run.json")
        fs.put_if_absent("run.json", b"{}")
        fs.pin("run.json")
        fs.check_place()
        again().replace("run.json", b"[]")
        with pytest.raises(StoreLostError, match=r"run\.json has changed"):
            fs.check_place()
        again().remove("run.json")
        with pytest.raises(StoreLostError, match=r"run\.json"):
            fs.check_place()

    def test_names_and_folders(self, fs: Filesystem) -> None:
        assert (fs.names(), fs.folders(), fs.names("none")) == ([], [], [])
        for name in ("b", "a", ".tmp-1", "folder/c", "folder/below/d", "folders/e"):
            fs.put_if_absent(name, b"")
        assert fs.names() == [".tmp-1", "a", "b"]
        assert fs.names("folder") == ["c"]
        assert fs.folders() == ["folder", "folders"]

    def test_many_names(self, fs: Filesystem) -> None:
        names = [f"shards/{number:05d}" for number in range(self.num_many)]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda name: fs.put_if_absent(name, b""), names))
        assert fs.names("shards") == [name.removeprefix("shards/") for name in names]
        assert fs.folders() == ["shards"]

    def test_a_lock_excludes_and_is_shared(self, fs: Filesystem, again: Again) -> None:
        other = again()
        with fs.lock(".run.lock", exclusive=False, wait=False) as first:
            assert first
            with other.lock(".run.lock", exclusive=False, wait=False) as second:
                assert second
            with other.lock(".run.lock", exclusive=True, wait=False) as alone:
                assert not alone
        with other.lock(".run.lock", exclusive=True, wait=False) as alone:
            assert alone
            for exclusive in (True, False):
                with fs.lock(".run.lock", exclusive=exclusive, wait=False) as too:
                    assert not too
        with fs.lock(".run.lock", exclusive=True, wait=False) as alone:
            assert alone

    def test_locks_of_two_names_do_not_meet(self, fs: Filesystem, again: Again) -> None:
        with (
            fs.lock(".run.lock", exclusive=True, wait=False) as first,
            again().lock("ledger/.attach.lock", exclusive=True, wait=False) as second,
        ):
            assert first
            assert second

    @pytest.mark.parametrize("exclusive", [True, False])
    def test_waiting_ends_when_the_holder_lets_go(
        self, fs: Filesystem, again: Again, exclusive: bool
    ) -> None:
        obtained_s = []
        other = again()

        def wait() -> None:
            with other.lock("l", exclusive=exclusive, wait=True) as held:
                assert held
                obtained_s.append(time.monotonic())

        with fs.lock("l", exclusive=True, wait=False):
            waiting = threading.Thread(target=wait)
            waiting.start()
            time.sleep(0.5)
            assert not obtained_s
            let_go_s = time.monotonic()
        waiting.join(timeout=30)
        assert obtained_s[0] >= let_go_s

    def test_one_exclusive_holder_at_a_time(self, again: Again) -> None:
        inside = 0
        most = 0
        count = threading.Lock()

        def work(number: int) -> None:
            nonlocal inside, most
            with again().lock("l", exclusive=True, wait=True) as held:
                assert held
                with count:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.02)
                with count:
                    inside -= 1

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert most == 1

    def test_one_of_those_who_do_not_wait_gets_it(self, again: Again) -> None:
        stores = [again() for _ in range(3)]
        barrier = threading.Barrier(3)

        def ask(fs: Filesystem) -> bool:
            barrier.wait()
            with fs.lock("l", exclusive=True, wait=False) as alone:
                barrier.wait()
                return alone

        with ThreadPoolExecutor(3) as pool:
            assert sum(pool.map(ask, stores)) == 1

    def test_the_check_leaves_nothing(self, fs: Filesystem) -> None:
        check_creates_once(fs)
        assert (fs.names(), fs.folders()) == ([], [])
