"""The ledger contract as a Hypothesis state machine.

Owns the model: the granted leases, and the shard of each finished task.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llmperf_common.ledger.protocol import Committed, Holder, Lease, Refused
from tests.support.contracts.ledger_contract import (
    TASKS,
    TTL_S,
    Harness,
    claim,
    shard_pair,
    tasks_of,
)


class LedgerMachine(RuleBasedStateMachine):
    """Any order of the rules: no task commits twice, and no stale token has an effect."""

    holders = st.integers(min_value=0, max_value=3)
    picks = st.lists(st.integers(min_value=0, max_value=30), min_size=1, max_size=3, unique=True)

    def make_harness(self) -> Harness:
        """Return a fresh ledger."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        """Start with an empty ledger."""
        self.harness = self.make_harness()
        self.ledger = self.harness.open()
        self.granted: list[Lease] = []
        self.newest: dict[int, int] = {}
        self.done: dict[int, str] = {}
        self.num_shards = 0
        self.incarnation = dict.fromkeys(range(4), 0)

    def teardown(self) -> None:
        """Close what ``begin`` opened."""
        if hasattr(self, "harness"):
            self.harness.close()

    @rule(holder=holders, limit=st.integers(min_value=1, max_value=4))
    def claim_some(self, holder: int, limit: int) -> None:
        """A worker claims."""
        leases = claim(self.ledger, self._holder(holder), limit)
        assert len(leases) <= limit
        for lease in leases:
            assert lease.task in TASKS
            assert lease.task not in self.done, "a committed task was claimed"
            assert lease.token > max(self.newest.values(), default=0)
            self.newest[lease.task] = lease.token
        assert len(set(tasks_of(leases))) == len(leases)
        self.granted += leases

    @rule(seconds=st.sampled_from([TTL_S / 3, TTL_S + 1]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.harness.pass_time(seconds)

    @rule(picks=picks)
    def renew_some(self, picks: list[int]) -> None:
        """A holder renews leases, perhaps stale ones."""
        leases = self._picked(picks)
        assert self.ledger.renew(leases, ttl_s=TTL_S) == [x for x in leases if self._is_valid(x)]

    @rule(picks=picks)
    def release_some(self, picks: list[int]) -> None:
        """A holder gives leases back, perhaps stale ones."""
        self.ledger.release(self._picked(picks))

    @rule(picks=picks)
    def commit_some(self, picks: list[int]) -> None:
        """A holder commits, perhaps with stale tokens."""
        leases = self._picked(picks)
        if not leases:
            return
        self.num_shards += 1
        stem = f"s{self.num_shards}"
        outcome = self.ledger.commit(shards=shard_pair(stem, len(leases)), leases=leases)
        stale = tuple(lease.task for lease in leases if not self._is_valid(lease))
        assert outcome == (Refused(stale) if stale else Committed())
        if isinstance(outcome, Committed):
            self.done.update({lease.task: stem for lease in leases})
            assert self.ledger.commit(shards=shard_pair(stem), leases=leases) == Committed()

    @rule(holder=holders)
    def crash(self, holder: int) -> None:
        """A worker dies; another process takes its number."""
        self.harness.kill(self._holder(holder))
        self.incarnation[holder] += 1

    @rule()
    def reopen(self) -> None:
        """The ledger is opened again, so its state must be on disk."""
        self.ledger = self.harness.open()

    @invariant()
    def counts_agree(self) -> None:
        """The ledger and the model have the same finished tasks in the same shards."""
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.counts(TASKS).done == len(self.done)
        names = {shard.name for shard in self.ledger.unpublished()}
        assert names == {entry.name for stem in self.done.values() for entry in shard_pair(stem)}

    def _holder(self, number: int) -> Holder:
        return self.harness.holder(number + 10 * self.incarnation[number])

    def _picked(self, picks: list[int]) -> list[Lease]:
        if not self.granted:
            return []
        chosen = {self.granted[-1 - pick % len(self.granted)] for pick in picks}
        by_task = {lease.task: lease for lease in sorted(chosen, key=lambda x: x.token)}
        return list(by_task.values())

    def _is_valid(self, lease: Lease) -> bool:
        return self.newest[lease.task] == lease.token and lease.task not in self.done
