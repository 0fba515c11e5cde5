"""When a manifest is published: at once in a small dataset, and seldom enough in a large one that manifests do not fill the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import TaskCounts
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.filesystem import PosixFilesystem
from llmperf_common.store.manifest import Manifest, ShardEntry
from tests.simulation.work import PLAN_HASH
from workers import publishing
from workers.publishing import Publisher


class Shards(SqliteLedger):
    """A ledger of which only the shards matter; they lie in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.waiting: list[ShardEntry] = []
        self.num_made = 0
        (folder / "samples").mkdir(parents=True)

    @property
    def epoch(self) -> int:
        return 1

    def make(self, count: int) -> None:
        for number in range(self.num_made, self.num_made + count):
            name = f"samples/{number:06}.parquet"
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

    def mark_published(self, names: Sequence[str]) -> None:
        gone = set(names)
        self.waiting = [one for one in self.waiting if one.name not in gone]


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
    """Seconds that pass when they are told to."""

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


def test_a_small_dataset_is_published_at_once_and_a_large_one_seldom(tmp_path: Path) -> None:
    ledger, made, clock = Shards(tmp_path), list[Manifest](), Clock()
    publisher = publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0)
    for count in (1, 1, 98):
        ledger.make(count)
        clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == [1, 2, 100]
    ledger.make(4900)
    clock.run(1.0, publisher, ledger=ledger)
    assert listed(made) == [5000]
    ledger.make(1)
    clock.run(9.0, publisher, ledger=ledger)
    assert listed(made) == [], "2 ms for each of 5,000"
    clock.run(2.0, publisher, ledger=ledger)
    assert listed(made) == [5001]
    ledger.make(1)
    publisher.publish_all(ledger)
    assert listed(made) == [5002], "at its end a run waits for nothing"


def test_manifests_grow_with_the_length_of_a_run_and_not_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_WAIT_PER_SHARD_S", 0.05)
    sums = []
    for seconds in (200, 800):
        ledger, made, clock = Shards(tmp_path / str(seconds)), list[Manifest](), Clock()
        publisher = publisher_of(tmp_path / str(seconds), made, clock_s=clock, interval_s=1.0)
        for _ in range(seconds):
            ledger.make(1)
            clock.run(1.0, publisher, ledger=ledger)
        assert made[-1].shards, "it was published"
        sums.append(sum(listed(made)))
    short, long = sums
    assert long <= 800 / 0.05
    assert 3.0 < long / short < 6.0, "in four times the time; 16 would be the square"


def test_whoever_takes_over_waits_as_long_as_its_predecessor_would(tmp_path: Path) -> None:
    ledger, made, clock = Shards(tmp_path), list[Manifest](), Clock()
    first, second = (publisher_of(tmp_path, made, clock_s=clock, interval_s=1.0) for _ in range(2))
    ledger.make(5000)
    clock.run(1.0, first, ledger=ledger)
    assert listed(made) == [5000]
    ledger.make(1)
    clock.run(9.0, second, ledger=ledger)
    assert listed(made) == []
    clock.run(3.0, second, ledger=ledger)
    assert listed(made) == [5001]
