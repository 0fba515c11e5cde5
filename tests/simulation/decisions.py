"""What may go another way at a point of a schedule, and who decides.

Owns the kinds of decisions and the two choosers: one draws them from a seed and notes them, one repeats a noted
list. At a point without a decision the running process just goes on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """What happens at a point."""

    SWITCH = "switch"
    """Another process runs from here."""
    PAUSE = "pause"
    """The process is stopped for longer than a lease lives."""
    CRASH = "crash"
    """The process dies before its next operation."""
    CRASH_IN_TRANSACTION = "crash_in_transaction"
    """It dies at the n-th SQL statement from here, odd n: before its effect, even n: after it."""
    POWER_CUT = "power_cut"
    """All processes die."""
    START = "start"
    """A new process joins."""
    STOP = "stop"
    """Ctrl-C: the process is asked to stop gracefully."""
    ABORT = "abort"
    """A second Ctrl-C: it drops the task in hand."""
    WIPE = "wipe"
    """A user removes the folder ``ledger/``: the database and the attach lock in it."""
    UNREADABLE = "unreadable"
    """The next process that opens the ledger finds it damaged, though others still use it."""
    SUSPEND = "suspend"
    """The host sleeps: its boot clock goes on, the monotonic clocks do not."""
    AWAY = "away"
    """The process's next ledger operations get no answer: odd n before their effect, even n after it."""
    NO_SPACE = "no_space"
    """The next file that the process writes finds the disk full."""
    ROLL_BACK = "roll_back"
    """A user puts an earlier state of the ledger in its place, or removes its write-ahead log."""
    RESTORE = "restore"
    """The ledger's server is put back to an earlier state together with its host: collectors keep their connections."""
    LOSE_MANIFESTS = "lose_manifests"
    """A user removes the newest manifest (even n), all of them (n = 1) or another one."""
    LOSE_SHARD = "lose_shard"
    """A user removes a shard that no manifest has ever listed."""
    LOSE_FOLDER = "lose_folder"
    """The process's mount goes: under the dataset's name it finds an empty folder. Its ledger is on a server."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that happens; ``number`` picks among the choices a kind has."""

    kind: Kind
    number: int


class Chooser(Protocol):
    """Says what happens at the n-th point of a schedule."""

    def at(self, position: int) -> Decision | None:
        """Return the decision, None to go on; None for ever once faults have stopped."""
        ...


_WEIGHTS = {
    Kind.PAUSE: 5,
    Kind.CRASH: 8,
    Kind.CRASH_IN_TRANSACTION: 3,
    Kind.POWER_CUT: 1,
    Kind.START: 5,
    Kind.STOP: 3,
    Kind.ABORT: 1,
    Kind.WIPE: 5,
    Kind.UNREADABLE: 2,
    Kind.SUSPEND: 2,
    Kind.AWAY: 4,
    Kind.NO_SPACE: 1,
    Kind.ROLL_BACK: 4,
    Kind.RESTORE: 4,
    Kind.LOSE_MANIFESTS: 3,
    Kind.LOSE_SHARD: 2,
    Kind.LOSE_FOLDER: 2,
}
_KINDS = tuple(_WEIGHTS)
_CUMULATIVE = tuple(sum(list(_WEIGHTS.values())[: n + 1]) for n in range(len(_WEIGHTS)))
_SWITCH_RATES = (0.01, 0.05, 0.15, 0.4)
_FAULT_RATES = (0.005, 0.02, 0.05)
_CHAOS_POINTS = (60, 150, 300)


class RandomChooser:
    """Draws decisions from a seeded generator, and notes them for a replay.

    How often processes switch and fail differs from schedule to schedule: some bugs need many switches, others one
    fault at the right moment.
    """

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self._rng = rng
        self._fault_rate = rng.choice(_FAULT_RATES)
        self._rate = self._fault_rate + rng.choice(_SWITCH_RATES)
        self._last = rng.choice(_CHAOS_POINTS)
        self.taken: dict[int, Decision] = {}

    def at(self, position: int) -> Decision | None:
        """Return the decision at a point."""
        if position > self._last:
            return None
        draw = self._random()
        if draw >= self._rate:
            return None
        kind = Kind.SWITCH
        if draw < self._fault_rate:
            (kind,) = self._rng.choices(_KINDS, cum_weights=_CUMULATIVE)
        decision = Decision(kind, self._rng.randrange(12))
        self.taken[position] = decision
        return decision


class ReplayChooser:
    """Repeats noted decisions."""

    def __init__(self, taken: Mapping[int, Decision]) -> None:
        self.taken = dict(taken)

    def at(self, position: int) -> Decision | None:
        """Return the decision at a point."""
        return self.taken.get(position)
