"""Rebuilding: whatever was committed is found again, and no task twice."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llmperf_common.ids import sha256_hex
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import Manifest, latest_manifest
from llmperf_common.store.manifests.publish import StaleEpoch
from llmperf_common.store.manifests.run import create_or_join_run
from llmperf_common.store.tables.shard import ShardError, encode_device, write_shard
from llmperf_common.store.upkeep.rebuild import (
    Candidate,
    arbitrate,
    rebuild_manifest,
    tasks_by_shard,
)
from tests.support.factories.dataset_factory import (
    PLAN_HASH,
    good_outcome,
    make_dataset,
    make_device,
    make_kernel,
    make_result,
    make_run,
    publish_entries,
    write_pair,
)

HOLDERS = st.integers(0, 2)
TASKS = [f"task{i}" for i in range(5)]


class Collecting(RuleBasedStateMachine):
    """Holders that claim, write, commit, crash and outlive their epoch, as ``workers/collect/loop.py`` does.

    A holder whose commit is refused rewrites the valid tasks alone, under a new name, before it writes
    anything else: arbitration relies on the successor being the smaller one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.next_token = 1
        self.leases: dict[str, int] = {}
        self.done: set[str] = set()
        self.disk: list[Candidate] = []
        self.committed: list[Candidate] = []
        self.published: list[Candidate] = []
        self.held: list[dict[str, int]] = [{}, {}, {}]
        self.pending: list[Candidate | None] = [None, None, None]
        self.holder_epoch = [1, 1, 1]

    @rule(holder=HOLDERS, task=st.sampled_from(TASKS))
    def claim(self, holder: int, task: str) -> None:
        if task in self.done or self.holder_epoch[holder] != self.epoch:
            return
        self.leases[task] = self.held[holder][task] = self.next_token
        self.next_token += 1

    @rule(holder=HOLDERS, tasks=st.sets(st.sampled_from(TASKS)))
    def write(self, holder: int, tasks: set[str]) -> None:
        chosen = sorted(tasks & set(self.held[holder]))
        if chosen and self.pending[holder] is None:
            self._write(holder, chosen)

    @rule(holder=HOLDERS)
    def commit(self, holder: int) -> None:
        shard = self.pending[holder]
        if shard is None:
            return
        self.pending[holder] = None
        if shard.epoch != self.epoch:
            self.crash(holder)  # the ledger is another one: all it held is gone
            return
        valid = [t for t, token in shard.tokens if self.leases.get(t) == token]
        for task, _ in shard.tokens:
            if task not in valid:
                self.held[holder].pop(task, None)
        if len(valid) < len(shard.tokens):
            if valid:
                self._write(holder, valid)
            return
        self.committed.append(shard)
        for task in valid:
            self.done.add(task)
            del self.leases[task]
            del self.held[holder][task]

    @rule(holder=HOLDERS)
    def crash(self, holder: int) -> None:
        self.held[holder] = {}
        self.pending[holder] = None
        self.holder_epoch[holder] = self.epoch

    @rule()
    def publish(self) -> None:
        self.published += [c for c in self.committed if c not in self.published]

    @precondition(lambda self: self.disk)
    @rule()
    def wipe_the_ledger(self) -> None:
        self.published += self._adopted()
        self.committed = list(self.published)
        self.epoch += 1
        self.next_token = 1
        self.leases = {}
        self.done = {task for shard in self.published for task, _ in shard.tokens}

    @invariant()
    def nothing_committed_is_lost_and_no_task_is_twice(self) -> None:
        adopted = self._adopted()
        tasks = [task for shard in [*self.published, *adopted] for task, _ in shard.tokens]
        assert len(tasks) == len(set(tasks))
        for shard in self.committed:
            assert shard in self.published or shard in adopted

    def _adopted(self) -> list[Candidate]:
        bound = {task for shard in self.published for task, _ in shard.tokens}
        return arbitrate([c for c in self.disk if c not in self.published], bound)

    def _write(self, holder: int, tasks: list[str]) -> None:
        stem = f"shard{len(self.disk)}"
        shard = Candidate(
            stem=stem,
            epoch=self.holder_epoch[holder],
            tokens=tuple((task, self.held[holder][task]) for task in tasks),
            sha256=sha256_hex(stem.encode()),
            entries=(),
        )
        self.disk.append(shard)
        self.pending[holder] = shard


@pytest.mark.parametrize("num_left", range(5))
def test_a_joined_pair_is_adopted_however_many_of_its_pairs_are_left(num_left: int) -> None:
    """A compaction removes the pairs one by one; then all manifests are lost."""
    pairs = [_candidate(f"e000001-{task}", (task,)) for task in range(4)]
    joined = _candidate("compact-20260101T000000-0a", (0, 1, 2))
    joined_again = _candidate("compact-20260103T000000-0b", (0, 1, 2, 3))
    assert arbitrate([*pairs[:num_left], joined], ()) == [joined, *pairs[3:num_left]]
    assert arbitrate([*pairs[:num_left], joined, joined_again], ()) == [joined_again]


def _candidate(stem: str, tasks: Sequence[int]) -> Candidate:
    return Candidate(
        stem=stem,
        epoch=1,
        tokens=tuple((f"task{task}", task + 1) for task in tasks),
        sha256=sha256_hex(stem.encode()),
        entries=(),
    )


TestCollecting = Collecting.TestCase
TestCollecting.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def rebuilt(fs: PosixFilesystem, *, epoch: int) -> Manifest:
    manifest = rebuild_manifest(fs, plan_hash=PLAN_HASH, epoch=epoch)
    assert isinstance(manifest, Manifest)
    return manifest


def result(number: int):
    return make_result(make_kernel(number), [good_outcome(number, c) for c in range(2)])


@pytest.fixture
def fs(tmp_path: Path) -> PosixFilesystem:
    fs = PosixFilesystem(tmp_path)
    create_or_join_run(fs, make_run())
    return fs


def test_unpublished_shards_are_adopted_with_their_device(fs):
    write_shard(fs, encode_device(make_device(), plan_hash=PLAN_HASH))
    entries = write_pair(fs, "a", [result(0), result(1)])
    manifest = rebuilt(fs, epoch=2)
    assert manifest.shard_names == {e.name for e in entries} | {
        f"devices/{make_device().device_id}.parquet"
    }
    assert (manifest.epoch, manifest.num_tasks) == (2, 2)
    assert latest_manifest(fs) == manifest
    assert dict(tasks_by_shard(fs, manifest)) == {
        "kernels/a.parquet": (result(0).task_id, result(1).task_id)
    }


def test_a_published_task_stays_bound(fs):
    published = write_pair(fs, "a", [result(0)], first_token=1)
    publish_entries(fs, published)
    write_pair(fs, "b", [result(0)], first_token=99, epoch=2)
    manifest = rebuilt(fs, epoch=3)
    assert manifest.shard_names == {e.name for e in published}


def test_the_highest_epoch_and_token_wins(fs):
    write_pair(fs, "a", [result(0)], first_token=7, epoch=1)
    write_pair(fs, "b", [result(0)], first_token=1, epoch=2)
    write_pair(fs, "c", [result(0)], first_token=3, epoch=2)
    manifest = rebuilt(fs, epoch=3)
    assert {e.name for e in manifest.of_table("kernels")} == {"kernels/c.parquet"}


def test_damaged_incomplete_and_foreign_shards_are_left_out(fs):
    write_pair(fs, "whole", [result(0)])
    _, samples = write_pair(fs, "cut", [result(1)])
    cut = fs.root / samples.name
    cut.write_bytes(cut.read_bytes()[:-10])
    kernels, _ = write_pair(fs, "alone", [result(2)])
    (fs.root / kernels.name).unlink()
    write_pair(fs, "foreign", [result(3)], plan_hash="another")
    (fs.root / "kernels" / ".tmp-1-x").write_bytes(b"half")
    manifest = rebuilt(fs, epoch=2)
    assert manifest.shard_names == {"kernels/whole.parquet", "samples/whole.parquet"}


def test_a_missing_published_shard_is_named(tmp_path):
    make_dataset(tmp_path)
    fs = PosixFilesystem(tmp_path)
    manifest = latest_manifest(fs)
    assert manifest is not None
    lost = manifest.of_table("kernels")[0].name
    fs.remove(lost)
    with pytest.raises(ShardError, match=f"{lost} is listed in manifest-.* but missing: restore"):
        list(tasks_by_shard(fs, manifest))


def test_a_rebuild_of_an_older_epoch_does_not_lower_it(fs):
    rebuild_manifest(fs, plan_hash=PLAN_HASH, epoch=5)
    assert rebuild_manifest(fs, plan_hash=PLAN_HASH, epoch=4) == StaleEpoch(5)
    with pytest.raises(StoreError, match="another plan"):
        rebuild_manifest(fs, plan_hash="q", epoch=6)


def test_a_device_that_only_a_lost_manifest_listed_is_listed_beside_its_samples(fs):
    """No pair is adopted, because all samples are listed."""
    device = write_shard(fs, encode_device(make_device(), plan_hash=PLAN_HASH))
    publish_entries(fs, write_pair(fs, "a", [result(0)]))
    assert device.name in rebuilt(fs, epoch=2).shard_names
    (fs.root / device.name).unlink()
    assert device.name in rebuilt(fs, epoch=3).shard_names, "a listed device is not read again"
