"""A process that is killed at a named point: before or after one call of its ledger or its store.

``python -m tests.support.processes.dying_at_point POINT llmperf ARGUMENTS…`` runs a command that gets SIGKILL
at ``POINT`` (``Point.text``), or never (``never``). ``dying_store.py`` counts writes. Between two
writes there are calls of the ledger and the read-back, in which the loop writes nothing; here these
calls have names. The process appends the shards of each commit that the ledger has answered to the
file that the variable ``COMMITS_VARIABLE`` names, so that a test knows which shards must never be
lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cluster.ledger.redis import RedisLedger, RedisLocation
from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.ledger.protocol import Committed, LedgerAwayError
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.files.s3 import S3Filesystem
from llmperf_common.store.tables import shard
from tests.support.collecting import is_running
from tests.support.processes.dying_store import VICTIM_VARIABLE, shorten_lists

COMMITS_VARIABLE = "DYING_AT_POINT_COMMITS"
NEVER = "never"
_LEDGER_CALLS = (
    "claim", "commit", "elect_publisher", "unpublished", "check_names", "mark_published",
)  # fmt: skip
_HOME_CALLS = ("retire", "create")
_STORE_CALLS = ("put_if_absent", "read_bytes", "move", "remove")
ENCODE = "encode_table"


class When(StrEnum):
    """The side of a call on which the fault happens."""

    BEFORE = "before"
    """The process dies before the call."""
    AFTER = "after"
    """The process dies after the call has taken effect, before it uses the answer."""
    UNANSWERED = "unanswered"
    """No process dies. The call takes effect, but its answer is lost, once."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the collect loop at which a fault happens.

    Attributes:
        when: side of the call.
        call: name of a call of the ledger, of its location or of the store, or ``encode_table``.
        num_commits: the fault happens at the first such call after this number of commits of the
            process.
        name: a part of the file's name, for calls of the store.
    """

    when: When
    call: str
    num_commits: int
    name: str = ""

    @property
    def text(self) -> str:
        """The point as the command line and the names of tests have it."""
        return f"{self.when}:{self.call}:{self.name}:{self.num_commits}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """Return the point that a text describes."""
        when, call, name, num_commits = text.split(":")
        return cls(When(when), call, int(num_commits), name)


class Planted:
    """A point at which this process, or the one that ``VICTIM_VARIABLE`` names, is killed once.

    Args:
        point: the point; None for no fault.
    """

    def __init__(self, point: Point | None) -> None:
        self._point = point
        self._num_commits = 0
        self._is_over = False
        self._victim = int(os.environ.get(VICTIM_VARIABLE, os.getpid()))
        self._commits = os.environ.get(COMMITS_VARIABLE)
        for call in _LEDGER_CALLS:
            for ledger in (SqliteLedger, RedisLedger):
                self._plant(ledger, call)
        for call in _HOME_CALLS:
            for ledger_location in (SqliteLocation, RedisLocation):
                self._plant(ledger_location, call)
        for call in _STORE_CALLS:
            for store in (PosixFilesystem, S3Filesystem):
                self._plant(store, call)
        self._plant(shard, ENCODE)

    def _plant(self, owner: Any, call: str) -> None:
        original: Callable[..., Any] = getattr(owner, call)

        def planted(*given: Any, **named: Any) -> Any:
            if self._is_reached(When.BEFORE, call, given):
                self._kill()
            answer = original(*given, **named)
            if isinstance(answer, Committed):
                self._note([entry.name for entry in named["shards"]])
            if self._is_reached(When.AFTER, call, given):
                self._kill()
            if self._is_reached(When.UNANSWERED, call, given):
                self._is_over = True
                raise LedgerAwayError("planted: the answer is lost")
            return answer

        setattr(owner, call, planted)

    def _is_reached(self, when: When, call: str, given: tuple[Any, ...]) -> bool:
        point = self._point
        if point is None or self._is_over or (point.when, point.call) != (when, call):
            return False
        file = str(given[1]) if call in _STORE_CALLS else ""
        return point.name in file and self._num_commits >= point.num_commits

    def _kill(self) -> None:
        self._is_over = True
        os.kill(self._victim, signal.SIGKILL)
        while is_running(self._victim):  # the death of another process takes time
            time.sleep(0.001)

    def _note(self, shards: list[str]) -> None:
        self._num_commits += 1
        if self._commits:
            with Path(self._commits).open("a", encoding="utf-8") as file:
                file.writelines(f"{name}\n" for name in shards)


if __name__ == "__main__":
    shorten_lists()
    Planted(None if sys.argv[1] == NEVER else Point.parse(sys.argv[1]))
    from llmperf.cli.main import run

    sys.argv = sys.argv[2:]
    run()
