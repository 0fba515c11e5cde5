"""What holds when a ledger is restored to an earlier state while it is in use; the same for every kind of ledger.

A test class inherits ``RollbackContract`` and defines the fixture ``harness``, as for ``ledger_contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from llmperf_common.ledger import checked_names
from llmperf_common.ledger.protocol import Committed, Ledger, LedgerAwayError, LedgerLostError
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest
from tests.support.contracts.ledger_contract import PLAN_HASH, Harness, claim, shard_pair, tasks_of
from workers.collect.publishing import Publisher

_TASKS = range(100)
_NUM_CALLS = 14
"""Calls of three publishes."""
_AT_ONCE = checked_names._AT_ONCE
_Before = dict[int, list[Callable[[], None]]]


class RestorableHarness(Harness, Protocol):
    """A ledger that can be restored to an earlier state under its users."""

    def save(self) -> Any:
        """Return the ledger's present state."""
        ...

    def restore(self, state: Any) -> None:
        """Put a saved state in place; connections and the server go on."""
        ...


class Disturbed:
    """A ledger before whose n-th calls something else happens, and whose ``lost`` calls get no answer.

    A lost call takes effect if ``is_heard``.
    """

    def __init__(
        self, ledger: Ledger, before: _Before | None = None, *, is_heard: bool = True
    ) -> None:
        self._ledger = ledger
        self._is_heard = is_heard
        self.begin(before or {})

    def begin(self, before: _Before, lost: Container[int] = ()) -> None:
        """Count the calls from 0 again."""
        self._before = before
        self._lost = lost
        self._calls = count()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            number = next(self._calls)
            for act in self._before.get(number, ()):
                act()
            if number not in self._lost:
                return found(*args, **options)
            if self._is_heard:
                found(*args, **options)
            raise LedgerAwayError("simulated")

        return call


class Dataset:
    """A folder of shards, and which tasks are in which of them."""

    def __init__(self, folder: Path, harness: RestorableHarness) -> None:
        self._folder = folder
        self.fs = PosixFilesystem(folder)
        self._harness = harness
        self._ledger = harness.open()
        self._tasks: dict[str, list[int]] = {}
        self._clock = count(100, 10)

    def work(self, holder: int, num_tasks: int, *, num_further: int = 0) -> None:
        """Claim tasks and commit them, with ``num_further`` shards that hold no task."""
        stem = f"s{len(self._tasks)}"
        leases = claim(self._ledger, self._harness.holder(holder), num_tasks, _TASKS)
        pair = []
        for one in shard_pair(stem, len(leases)):
            self.fs.put_if_absent(one.name, one.name.encode())
            pair.append(ShardEntry.of(one.name, one.name.encode(), rows=1, tasks=len(leases)))
        self._tasks[pair[0].name] = tasks_of(leases)
        for number in range(num_further):
            name = f"kernels/{stem}-{number}.parquet"
            (self._folder / name).write_text(name)
            pair.append(ShardEntry.of(name, name.encode(), rows=0, tasks=0))
        assert self._ledger.commit(shards=pair, leases=leases) == Committed()

    def publisher(self, holder: int) -> Publisher:
        """Return one that is due at each call."""
        return Publisher(
            fs=self.fs,
            plan_hash=PLAN_HASH,
            holder=self._harness.holder(holder),
            interval_s=1,
            clock_s=lambda: float(next(self._clock)),
            published=lambda _manifest: None,
        )

    def published(self) -> list[int]:
        """Return the tasks of the current version, each as often as it is there."""
        manifest = latest_manifest(self.fs)
        assert manifest is not None
        names = [one.name for one in manifest.of_table("kernels")]
        return [task for name in names for task in self._tasks.get(name, ())]


class RollbackContract:
    """The promises of ``check_names``, and what a publisher makes of them."""

    def test_a_check_returns_what_is_unknown(self, harness: RestorableHarness) -> None:
        ledger = harness.open()
        ledger.commit(shards=shard_pair("a"), leases=claim(ledger, harness.holder(1)))
        names = ["kernels/b.parquet", "kernels/a.parquet", "kernels/c.parquet"]
        other = harness.open()
        assert ledger.check_names(names, checker="x", number=1, after=0) == [names[0], names[2]]
        assert other.check_names(names[1:2], checker="x", number=2, after=1) == []
        assert ledger.check_names([], checker="x", number=3, after=2) == []
        assert ledger.check_names([], checker="y", number=1, after=0) == []
        assert ledger.check_names([], checker="y", number=2, after=3) is None
        many = [f"kernels/{number}.parquet" for number in range(499)]
        assert ledger.check_names([*many, names[1]], checker="y", number=2, after=1) == many

    def test_a_check_that_takes_effect_late_lowers_no_number(
        self, harness: RestorableHarness
    ) -> None:
        ledger = harness.open()
        assert ledger.check_names([], checker="x", number=7, after=0) == []
        assert ledger.check_names([], checker="x", number=6, after=0) == []
        assert ledger.check_names([], checker="x", number=8, after=7) == []

    def test_a_restored_ledger_is_behind(self, harness: RestorableHarness) -> None:
        ledger = harness.open()
        assert ledger.check_names([], checker="x", number=1, after=0) == []
        state = harness.save()
        assert ledger.check_names([], checker="x", number=2, after=1) == []
        harness.restore(state)
        assert ledger.check_names([], checker="x", number=3, after=2) is None
        assert ledger.check_names([], checker="x", number=4, after=2) is None, "it notes nothing"
        assert ledger.check_names([], checker="x", number=5, after=1) == []

    @pytest.mark.parametrize("other_publishes", [False, True])
    def test_no_rollback_doubles_a_task(
        self, harness: RestorableHarness, tmp_path: Path, other_publishes: bool
    ) -> None:
        """Before each call of a publisher, with two commits of others before this call and calls soon after it."""
        num_found, empty = 0, harness.save()
        for restored in range(_NUM_CALLS):
            for wait, gap in product((0, 1), (1, 2)):
                calls = (restored, restored + wait, restored + wait + gap)
                folder = tmp_path / "-".join(map(str, calls))
                folder.mkdir()
                harness.restore(empty)
                num_found += _is_noticed(harness, folder, calls, other_publishes)
        assert num_found > _NUM_CALLS, "many rollbacks are noticed"

    @pytest.mark.parametrize("is_heard", [True, False])
    @pytest.mark.parametrize(("num_further", "at_once"), [(0, 2), (_AT_ONCE, _AT_ONCE)])
    def test_no_lost_answer_after_a_rollback_doubles_a_task(
        self,
        harness: RestorableHarness,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        num_further: int,
        at_once: int,
        is_heard: bool,
    ) -> None:
        """For every call after the rollback, alone or together with the next one."""
        monkeypatch.setattr(checked_names, "_AT_ONCE", at_once)
        num_found, empty = 0, harness.save()
        for restored, lost in product(range(1 if num_further else 6), range(14)):
            for num_lost in (1, 2):
                folder = tmp_path / f"{restored}-{lost}-{num_lost}"
                folder.mkdir()
                harness.restore(empty)
                num_found += _is_noticed_in_spite(
                    Dataset(folder, harness),
                    harness,
                    num_further=num_further,
                    restored=restored,
                    lost=range(restored + lost, restored + lost + num_lost),
                    is_heard=is_heard,
                )
        assert num_found > 14, "most rollbacks are noticed"


def _is_noticed(
    harness: RestorableHarness, folder: Path, calls: Sequence[int], other_publishes: bool
) -> bool:
    """Publish three times; check each version; return whether the publisher has noticed the rollback.

    Args:
        harness: the ledger, empty.
        folder: the dataset, empty.
        calls: before these calls of the publisher the ledger is rolled back, and others commit twice.
        other_publishes: whether another publisher has just published.
    """
    dataset = Dataset(folder, harness)
    ours, other = dataset.publisher(1), dataset.publisher(2)
    dataset.work(1, 1)
    other.publish_all(harness.open())
    state = harness.save()
    dataset.work(1, 2)
    if other_publishes:
        other.publish_all(harness.open())

    def restore() -> None:
        harness.restore(state)

    def others_work() -> None:
        dataset.work(2, 2)

    before: _Before = {}
    for call, act in zip(calls, (restore, others_work, others_work), strict=True):
        before.setdefault(call, []).append(act)
    ledger = cast("Ledger", Disturbed(harness.open(), before))
    try:
        for _ in range(3):
            ours.publish_if_due(ledger)
            assert len(set(dataset.published())) == len(dataset.published())
            dataset.work(1, 1)
        other.publish_all(harness.open())
    except LedgerLostError:
        return True
    finally:
        assert len(set(dataset.published())) == len(dataset.published())
    return False


def _is_noticed_in_spite(
    dataset: Dataset,
    harness: RestorableHarness,
    *,
    num_further: int,
    restored: int,
    lost: range,
    is_heard: bool,
) -> bool:
    """Publish, roll back, and publish again although answers get lost; return whether the rollback is noticed.

    Args:
        dataset: an empty one.
        harness: its ledger.
        num_further: number of shards without tasks.
        restored: before this call after the first publish the ledger is rolled back, and another worker
            finishes the forgotten tasks.
        lost: the calls after the first publish that get no answer.
        is_heard: whether these calls take effect.
    """
    ours, ledger = dataset.publisher(1), harness.open()
    dataset.work(1, 1, num_further=num_further)
    dataset.work(1, 1)
    state = harness.save()
    for _ in range(3):
        dataset.work(1, 1)
    before: _Before = {restored: [lambda: harness.restore(state), lambda: dataset.work(2, 3)]}
    disturbed = Disturbed(ledger, is_heard=is_heard)
    ours.publish_if_due(cast("Ledger", disturbed))
    assert len(dataset.published()) == 5
    disturbed.begin(before, lost)
    dataset.work(1, 1)
    for _ in range(6):
        try:
            ours.publish_if_due(cast("Ledger", disturbed))
        except LedgerAwayError:
            pass
        except LedgerLostError:
            return True
        finally:
            assert len(set(dataset.published())) == len(dataset.published())
    return False
