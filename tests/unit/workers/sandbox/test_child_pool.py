"""The pool of children that answer in parts: when an item is done, and from when its time counts."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from workers.sandbox import child_pool
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.messages import CompilerReady, Counted, FromChild
from workers.sandbox.run_children import ChildStartError

OUTCOME = Failure(code=FailureCode.UNSUPPORTED, stage=Stage.PROBE, detail="x")
LIMIT_S = 5.0


class FakeChild:
    """Says what the test gives it."""

    was_killed_by_another = False

    def __init__(self) -> None:
        self.says: list[FromChild] = []
        self.jobs: list[object] = []
        self.is_killed = False

    def send(self, job: object) -> bool:
        self.jobs.append(job)
        return True

    def receive(self) -> tuple[list[FromChild], bool]:
        said, self.says = self.says, []
        return said, False

    def kill(self) -> None:
        self.is_killed = True


class Work:
    """Takes answers in parts."""

    timeout_s = LIMIT_S

    def __init__(self) -> None:
        self.taken: list[FromChild] = []
        self.late: list[str] = []

    def job(self, item: str) -> Any:
        return item

    def take(self, item: str, answer: FromChild) -> bool:
        del item
        self.taken.append(answer)
        assert isinstance(answer, Counted)
        return answer.is_last

    def timed_out(self, item: str, after_s: float) -> None:
        assert after_s == self.timeout_s
        self.late.append(item)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pool's time, s."""
    now = [100.0]
    monkeypatch.setattr(child_pool, "awake_s", lambda: now[0])
    return now


def pool_of_one(child: FakeChild | None = None) -> tuple[ChildPool[str], Work, FakeChild]:
    child, work = child or FakeChild(), Work()
    pool: ChildPool[str] = ChildPool(
        start_child=lambda _name: child,  # type: ignore[arg-type, return-value]
        name="c",
        work=work,  # type: ignore[arg-type]
        num_children=1,
    )
    return pool, work, child


def hear(pool: ChildPool[str], child: FakeChild, *says: FromChild) -> None:
    child.says = list(says)
    pool.handle(child)  # type: ignore[arg-type]


def test_an_item_is_finished_by_its_last_answer(clock: list[float]) -> None:
    pool, work, child = pool_of_one()
    pool.submit("a")
    pool.start_waiting()
    first, second = (
        Counted(outcomes=(OUTCOME,), is_last=False),
        Counted(outcomes=(OUTCOME,), first=1, is_last=False),
    )
    hear(pool, child, CompilerReady(), first, second)
    assert pool.take_finished() == []
    assert pool.items() == ["a"]
    hear(pool, child, Counted(outcomes=(), first=2))
    assert pool.take_finished() == ["a"]
    assert pool.is_idle
    assert len(work.taken) == 3


def test_a_part_of_an_answer_does_not_renew_the_limit(clock: list[float]) -> None:
    pool, work, child = pool_of_one()
    pool.submit("a")
    pool.start_waiting()
    clock[0] += 30.0  # it is starting
    hear(pool, child, CompilerReady())
    clock[0] += LIMIT_S - 1
    hear(pool, child, Counted(outcomes=(OUTCOME,), is_last=False))
    pool.check_deadlines(clock[0])
    assert not child.is_killed
    clock[0] += 1.5
    pool.check_deadlines(clock[0])
    assert child.is_killed
    assert work.late == ["a"]
    assert pool.take_finished() == ["a"]


def test_the_next_item_has_its_own_time(clock: list[float]) -> None:
    pool, work, child = pool_of_one()
    pool.submit("a")
    pool.start_waiting()
    hear(pool, child, CompilerReady())
    clock[0] += LIMIT_S - 1
    hear(pool, child, Counted(outcomes=()))
    clock[0] += 60.0
    pool.submit("b")
    # An idle child is asked first whether it is still there; this one is no socket.
    pool._hear_idle = lambda: None  # type: ignore[method-assign]
    pool.start_waiting()
    clock[0] += LIMIT_S - 1
    pool.check_deadlines(clock[0])
    assert not child.is_killed
    assert work.late == []
    assert child.jobs == ["a", "b"]


class Starting(FakeChild):
    """Ends before it is ready, or is silent."""

    def __init__(self, *, is_gone: bool) -> None:
        super().__init__()
        self.is_gone = is_gone

    def receive(self) -> tuple[list[FromChild], bool]:
        return [], self.is_gone

    def describe_end(self) -> str:
        return "child process ended with exit code 1; stderr ends: MemoryError"


def starting_pool(*, is_gone: bool) -> tuple[ChildPool[str], Work, list[Starting]]:
    work, children = Work(), []

    def start(_name: str) -> Starting:
        children.append(Starting(is_gone=is_gone))
        return children[-1]

    pool: ChildPool[str] = ChildPool(
        start_child=start,  # type: ignore[arg-type]
        name="compile",
        work=work,  # type: ignore[arg-type]
        num_children=1,
    )
    return pool, work, children


def test_children_that_cannot_start_fail_no_item(clock: list[float]) -> None:
    pool, work, children = starting_pool(is_gone=True)
    pool.submit("a")
    for _ in range(2):
        pool.start_waiting()
        pool.handle(children[-1])  # type: ignore[arg-type]
        assert pool.items() == ["a"]
    pool.start_waiting()
    with pytest.raises(ChildStartError, match=r"compile kernels cannot be started .*MemoryError"):
        pool.handle(children[-1])  # type: ignore[arg-type]
    assert [child.jobs for child in children] == [[]] * 3, "it was no item's turn yet"
    assert pool.take_finished() == []
    assert work.late == []


def test_children_that_never_come_to_speak_fail_no_item(clock: list[float]) -> None:
    pool, work, children = starting_pool(is_gone=False)
    pool.submit("a")
    for _ in range(2):
        pool.start_waiting()
        clock[0] += 121.0
        pool.check_deadlines(clock[0])
        assert children[-1].is_killed
    pool.start_waiting()
    clock[0] += 121.0
    with pytest.raises(ChildStartError, match="no answer from it within 120 s"):
        pool.check_deadlines(clock[0])
    assert work.late == []


class SilentChild(FakeChild):
    """Has a descriptor on which nothing ever arrives."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def test_a_silent_child_ends_at_its_limit_even_if_the_owner_waits_long() -> None:
    """By the real clock, which takes a wait of more than a second for a stop of this process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pool, work, child = pool_of_one(SilentChild(ours.fileno()))
        work.timeout_s = 3.0
        pool.submit("a")
        pool.start_waiting()
        hear(pool, child, CompilerReady())
        begin_s = time.monotonic()
        while not pool.is_idle and time.monotonic() - begin_s < 10.0:
            pool.step(1.0)
        assert 3.0 <= time.monotonic() - begin_s <= 4.5
    assert work.late == ["a"]
