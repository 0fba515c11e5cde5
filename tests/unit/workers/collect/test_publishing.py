"""When a manifest is published, and what that costs, however many shards there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from llmperf_common.ledger.checked_names import CheckedNames
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import LedgerLostError, TaskCounts
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ShardEntry,
    latest_manifest,
    manifest_name,
)
from llmperf_common.store.manifests.publish import publish
from llmperf_common.store.manifests.segments import FANOUT, SEALED_AT
from tests.simulation.work import PLAN_HASH
from workers.collect.publishing import Publisher


class Shards(SqliteLedger):
    """A ledger of which only the shards matter; they lie in ``folder``."""

    table = "samples"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.waiting: list[ShardEntry] = []
        self.num_made = 0
        self.notes: dict[str, int] = {}
        """The highest number of each checker's checks."""
        (folder / self.table).mkdir(parents=True)

    @property
    def epoch(self) -> int:
        return 1

    def make(self, count: int) -> None:
        for number in range(self.num_made, self.num_made + count):
            name = f"{self.table}/{number:06}.parquet"
            (self._folder / name).write_text(name)
            self.waiting.append(ShardEntry.of(name, name.encode(), rows=1, tasks=1))
        self.num_made += count

    def elect_publisher(self, **_: object) -> bool:
        return True

    def unpublished(self) -> list[ShardEntry]:
        return list(self.waiting)

    def counts(self, tasks: range) -> TaskCounts:
        return TaskCounts(done=0, leased=0, total=len(tasks))  # these are samples: no task's kernel

    def unknown(self, names: Sequence[str]) -> list[str]:
        return []

    def check_names(
        self, names: Sequence[str], *, checker: str, number: int, after: int
    ) -> list[str] | None:
        if self.notes.get(checker, 0) < after:
            return None
        self.notes[checker] = max(self.notes.get(checker, 0), number)
        return self.unknown(names)

    def mark_published(self, names: Sequence[str]) -> None:
        gone = set(names)
        self.waiting = [one for one in self.waiting if one.name not in gone]


class KernelShards(Shards):
    """Remembers what it was asked for."""

    table = "kernels"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.recorded: dict[str, ShardEntry] = {}
        self.asked: list[str] = []

    def make(self, count: int) -> None:
        super().make(count)
        self.recorded.update((entry.name, entry) for entry in self.waiting)

    def counts(self, tasks: range) -> TaskCounts:
        return TaskCounts(done=self.num_made, leased=0, total=len(tasks))

    def shards(self) -> list[ShardEntry]:
        return list(self.recorded.values())

    def unknown(self, names: Sequence[str]) -> list[str]:
        self.asked += names
        return [name for name in names if name not in self.recorded]


def publisher_of(
    folder: Path, made: list[Manifest], *, clock_s: Callable[[], float], interval_s: float
) -> Publisher:
    return Publisher(
        fs=PosixFilesystem(folder),
        plan_hash=PLAN_HASH,
        holder=this_process(),
        interval_s=interval_s,
        clock_s=clock_s,
        published=made.append,
    )


class Clock:
    """A clock that moves when the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def run(self, seconds: float, *publishers: Publisher, ledger: Shards) -> None:
        """Let the publishers be asked every tenth of a second."""
        for _ in range(round(10 * seconds)):
            for publisher in publishers:
                publisher.publish_if_due(ledger)
            self.now_s += 0.1


def listed(made: list[Manifest]) -> list[int]:
    """Return how many shards each manifest lists, and forget them."""
    found = [len(one.shards) for one in made]
    made.clear()
    return found


def test_a_large_dataset_is_published_as_often_as_a_small_one(tmp_path: Path) -> None:
    ledger, made, clock = Shards(tmp_path), list[Manifest](), Clock()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    for count in (1, 1, 98, 4900, 1):
        ledger.make(count)
        clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == [1, 2, 100, 5000, 5001]


class CountingFilesystem(PosixFilesystem):
    """Counts what is written and read."""

    num_written = num_read = 0

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.num_written += len(data)
        return super().put_if_absent(name, data)

    def read_bytes(self, name: str) -> bytes:
        data = super().read_bytes(name)
        self.num_read += len(data)
        return data


@pytest.mark.slow
def test_what_a_version_costs_does_not_grow_with_the_list(tmp_path: Path) -> None:
    fs, ledger, made, clock = (
        CountingFilesystem(tmp_path),
        Shards(tmp_path),
        list[Manifest](),
        Clock(),
    )
    publisher = Publisher(
        fs=fs, plan_hash=PLAN_HASH, holder=this_process(), interval_s=1.0, clock_s=clock, published=made.append,
    )  # fmt: skip
    costs: dict[int, list[int]] = {}
    for size in (2_000, 20_000):
        ledger.make(size - ledger.num_made)
        clock.run(1.0, publisher, ledger=ledger)
        fs.num_written = fs.num_read = 0
        for _ in range(200):
            ledger.make(4)
            clock.run(1.0, publisher, ledger=ledger)
        costs[size] = [fs.num_written // 200, fs.num_read // 200]
    assert len(made[-1].shards) == 20_800
    assert len(made[-1].shard_names) == 20_800
    for before, after in zip(costs[2_000], costs[20_000], strict=True):
        assert after < 1.5 * before, costs
        assert after < 64_000, costs
    manifests = list(tmp_path.glob("manifest-*"))
    assert len(manifests) <= 30, "old versions go"


def test_one_that_takes_over_lists_what_its_predecessor_has(tmp_path: Path) -> None:
    ledger, made, clock = Shards(tmp_path), list[Manifest](), Clock()
    first, second = (publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0) for _ in range(2))
    for publisher in (first, second, first, second):
        ledger.make(300)
        clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == [300, 600, 900, 1200]


def num_calls(work: Callable[[], None]) -> int:
    """Return how many calls ``work`` makes; each item that a generator yields is one."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_what_a_version_computes_does_not_grow_with_the_list(tmp_path: Path) -> None:
    ledger, made, clock = KernelShards(tmp_path), list[Manifest](), Clock()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    calls = []
    for size in (1_000, 10_000):
        ledger.make(size - ledger.num_made)
        clock.run(1.0, publisher, ledger=ledger)
        ledger.make(4)
        calls.append(num_calls(lambda: clock.run(1.0, publisher, ledger=ledger)))
    assert listed(made)[-1] == 10_004
    assert calls[1] < 1.5 * calls[0], calls


def test_who_publishes_in_turns_asks_for_each_new_shard_once(tmp_path: Path) -> None:
    ledger, made, clock = KernelShards(tmp_path), list[Manifest](), Clock()
    first, second = (publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0) for _ in range(2))
    asked: list[list[str]] = [[], []]
    for _ in range(FANOUT):  # the last makes one segment of all
        for publisher, mine in zip((first, second), asked, strict=True):
            ledger.make(SEALED_AT)
            ledger.asked.clear()
            clock.run(1.0, publisher, ledger=ledger)
            mine.extend(ledger.asked)
    segments = [len(manifest.segments) for manifest in made]
    assert any(after < before for before, after in pairwise(segments)), "some became one"
    num_at_start = 2 * SEALED_AT  # the second compares the ledger with what it finds, both ways
    for mine in asked:
        later = mine[num_at_start:]
        assert len(set(later)) == len(later), "none is asked for again"
        assert len(later) <= 2 * FANOUT * SEALED_AT  # its own and those of the other


@pytest.mark.parametrize("count", [3, FANOUT * SEALED_AT])
def test_what_a_colleague_lists_and_the_ledger_does_not_know_is_refused(
    tmp_path: Path, count: int
) -> None:
    ledger, made, clock = KernelShards(tmp_path), list[Manifest](), Clock()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    ledger.make(count)
    clock.run(1.0, publisher, ledger=ledger)
    foreign = [
        ShardEntry.of(f"kernels/foreign-{one}.parquet", b"", rows=1, tasks=1)
        for one in range(count)
    ]
    publish(PosixFilesystem(tmp_path), foreign, plan_hash=PLAN_HASH, epoch=1)
    ledger.make(1)
    with pytest.raises(LedgerLostError, match="rolled back: it lacks kernels/foreign-0"):
        clock.run(1.0, publisher, ledger=ledger)


@pytest.mark.parametrize("count", [3, SEALED_AT, FANOUT * SEALED_AT])
def test_what_a_removed_manifest_had_listed_is_listed_again(tmp_path: Path, count: int) -> None:
    fs, ledger, made, clock = (
        PosixFilesystem(tmp_path),
        KernelShards(tmp_path),
        list[Manifest](),
        Clock(),
    )
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    for number in (SEALED_AT, count):
        ledger.make(number)
        clock.run(1.0, publisher, ledger=ledger)
    fs.remove(manifest_name(2))
    ledger.make(1)
    clock.run(1.0, publisher, ledger=ledger)
    newest = latest_manifest(fs)
    assert newest is not None
    assert newest.version == 2
    assert newest.shard_names == set(ledger.recorded)


def test_a_ledger_that_was_set_back_in_place_is_lost_before_it_doubles_a_task(
    tmp_path: Path,
) -> None:
    """As by the snapshot of a Redis server's host: the ledger object, its epoch and its run id stay the same.

    A worker has since committed as many tasks as were forgotten, so no count shows it.
    """
    ledger, made, clock = KernelShards(tmp_path), list[Manifest](), Clock()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    ledger.make(2)
    clock.run(1.0, publisher, ledger=ledger)
    notes = dict(ledger.notes)
    ledger.make(2)
    clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == [2, 4]
    for name in list(ledger.recorded)[2:]:
        del ledger.recorded[name]
    ledger.notes = notes
    ledger.make(2)  # the forgotten tasks, done again
    with pytest.raises(LedgerLostError, match="rolled back"):
        clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == []


def test_a_ledger_set_back_that_has_all_shards_goes_on(tmp_path: Path) -> None:
    ledger, made, clock = KernelShards(tmp_path), list[Manifest](), Clock()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    ledger.make(2)
    clock.run(1.0, publisher, ledger=ledger)
    ledger.notes = {}
    ledger.make(1)
    ledger.asked.clear()
    clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == [2, 3]
    assert set(ledger.asked) == set(ledger.recorded), "all are compared again"


def test_what_only_the_last_manifest_lists_is_compared_after_a_rollback(tmp_path: Path) -> None:
    """The next comparison skips the names of that manifest, although its file may be gone for a moment."""
    ledger, made, clock, names = KernelShards(tmp_path), list[Manifest](), Clock(), CheckedNames()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    for _ in range(2):
        ledger.make(1)
        clock.run(1.0, publisher, ledger=ledger)
    first, second = made
    assert names.unknown(ledger, second, (), checked=None) == []
    (forgotten,) = second.shard_names - first.shard_names
    del ledger.recorded[forgotten]
    ledger.notes.clear()
    assert names.unknown(ledger, first, (), checked=second) == [forgotten]
    assert names.unknown(ledger, second, (), checked=second) == [forgotten]


def test_a_worker_lists_its_device_again_if_the_manifests_lost_only_that(tmp_path: Path) -> None:
    """Another device is listed, so a comparison with the ledger does not notice it."""
    ledger, clock, made = Shards(tmp_path), Clock(), list[Manifest]()
    one, other = (ShardEntry.of(f"devices/{n}.parquet", b"x", rows=1, tasks=0) for n in "ab")
    fs = PosixFilesystem(tmp_path)
    publish(fs, [one], plan_hash=PLAN_HASH, epoch=1)
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    ledger.make(1)
    clock.run(1.0, publisher, ledger=ledger)
    assert other.name not in made[-1].shard_names  # this worker has committed no samples
    publisher.device_shards = [other]
    with pytest.raises(StoreError, match=r"devices/b\.parquet is gone"):
        publisher.publish_all(ledger)
    assert latest_manifest(fs) == made[-1], "a manifest lists only files that exist"
    fs.put_if_absent(other.name, b"x")
    publisher.publish_all(ledger)
    assert {one.name, other.name} <= made[-1].shard_names
