"""One processor of the host for all launches of a collector: whose it is, who is kept on it, and when it is given up."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE
from workers.measure import launch_processor
from workers.measure.launch_processor import LaunchProcessor, kept_waiting_s, launching_from
from workers.sandbox.processors import for_launches, for_work_ahead, share_of

MANY = tuple(range(24))
HOLD = """
import sys
from workers.measure.launch_processor import LaunchProcessor
mine = LaunchProcessor()
mine.take(range(24))
print(mine.number, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("workers.sandbox.processors._siblings", lambda one: frozenset({one}))
    return tmp_path


@contextmanager
def another_collector() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has taken a processor, and which."""
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def taken() -> LaunchProcessor:
    mine = LaunchProcessor()
    mine.take(MANY)
    return mine


def test_launches_come_from_where_nobody_works_ahead() -> None:
    for processors in (range(8), range(16), range(3, 64, 2)):
        ahead = for_work_ahead(processors)
        assert ahead is not None
        assert frozenset(for_launches(processors)) == frozenset(processors) - ahead
    assert for_launches(range(7)) == ()


def hyperthreads(one: int) -> frozenset[int]:
    """32 cores of two threads, as Linux numbers them."""
    return frozenset({one % 32, one % 32 + 32})


def test_one_processor_a_core_and_the_first_core_last() -> None:
    assert for_launches(range(8), lambda one: frozenset({one ^ 1, one})) == (2, 0)
    assert for_launches(range(64), hyperthreads) == (1, 0)


@pytest.mark.parametrize("num_shares", [1, 2, 3, 8])
def test_shares_have_cores_of_their_own(num_shares: int) -> None:
    shares = [share_of(range(64), index, num_shares, hyperthreads) for index in range(num_shares)]
    cores = [{min(hyperthreads(one)) for one in share} for share in shares]
    assert sum(map(len, cores)) == len(set().union(*cores)), "no core in two shares"
    assert {len(share) for share in shares} == {2 * (32 // num_shares)}
    launching = [for_launches(share, hyperthreads)[0] for share in shares]
    assert len({min(hyperthreads(one)) for one in launching}) == num_shares


def test_more_shares_than_cores_are_not_cut() -> None:
    assert share_of(range(4), 5, 8, lambda one: frozenset({one})) == frozenset(range(4))


def test_where_one_core_is_all_nothing_is_set_aside() -> None:
    assert for_work_ahead(MANY, lambda _: frozenset(MANY)) is None
    assert for_launches(MANY, lambda _: frozenset(MANY)) == ()


def test_each_collector_of_a_host_has_its_own() -> None:
    with another_collector() as (process, theirs):
        first, second = taken(), taken()
        numbers = {int(theirs), first.number, second.number}
        assert len(numbers) == 3
        assert numbers < set(for_launches(MANY))
        process.kill()
        process.wait()
        assert taken().number == int(theirs), "the lock goes with its holder"


def test_where_all_are_taken_launches_come_from_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    held = [taken() for _ in range(4)]
    assert not caplog.text
    held.append(taken())
    assert [one.number for one in held] == [3, 2, 1, 0, None]
    assert (
        "none of the processors 3, 2, 1, 0 is free: other collectors have taken them" in caplog.text
    )
    held[1].give_up()
    assert held[1].number is None
    assert taken().number == 2


def test_a_small_host_has_none_to_give() -> None:
    mine = LaunchProcessor()
    mine.take(range(4))
    assert mine.number is None
    mine.note_hold(100.0, 100.0)
    mine.give_up()


def test_a_lock_that_cannot_be_had_is_passed_over(lock_dir: Path) -> None:
    (lock_dir / "llmperf-core-3.lock").symlink_to("/dev/null")
    assert taken().number == 2


def test_without_a_lock_folder_the_reason_is_told(
    lock_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(lock_dir / "none"))
    assert taken().number is None
    assert "llmperf-core-0.lock: No such file or directory" in caplog.text


def test_a_core_is_one_for_all_whoever_may_use_which_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.sandbox.processors._siblings", hyperthreads)
    first, second = LaunchProcessor(), LaunchProcessor()
    first.take(range(8))
    second.take(range(32, 40))
    assert (first.number, second.number) == (2, 33), "34 is the other thread of 2"


def test_a_shared_processor_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    mine = taken()
    for _ in range(5):
        mine.note_hold(0.5, 0.25)
        assert mine.number == 3, "two seconds and a half tell little"
    with caplog.at_level(logging.WARNING):
        mine.note_hold(0.5, 0.15)
    assert mine.number is None
    assert "another process uses processor 3 (47 % of the time)" in caplog.text
    assert taken().number == 3, "others may find it free"


def test_one_bad_second_at_the_start_is_forgiven() -> None:
    mine = taken()
    mine.note_hold(1.0, 0.17)
    for _ in range(50):
        mine.note_hold(1.0, 0.02)
    assert mine.number == 3


def test_one_that_others_use_for_two_seconds_of_three_is_given_up() -> None:
    mine = taken()
    for share in (0.2, 0.0, 0.2):
        mine.note_hold(1.0, share)
    assert mine.number is None


def test_one_that_is_ours_alone_is_kept() -> None:
    mine = taken()
    for _ in range(50):
        mine.note_hold(0.3, 0.02)
    assert mine.number == 3


def test_a_thread_stays_while_it_holds_the_lock_only() -> None:
    before = os.sched_getaffinity(0)
    for number in before:
        with launching_from(number):
            assert os.sched_getaffinity(0) == {number}
        assert os.sched_getaffinity(0) == before
    with pytest.raises(KeyError), launching_from(number):
        raise KeyError
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("number", [None, 100_000])
def test_it_stays_where_it_may_be_without_one(number: int | None) -> None:
    before = os.sched_getaffinity(0)
    with launching_from(number):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_waiting_beside_a_busy_process_is_seen() -> None:
    number = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{number}}}); print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", spin]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with launching_from(number):
                before_s, end_s = kept_waiting_s(), time.monotonic() + 0.5
                while time.monotonic() < end_s:
                    pass
                waited_s = kept_waiting_s() - before_s
        finally:
            process.kill()
    if not launch_processor._SCHEDSTAT.exists():
        pytest.skip("this kernel does not tell how long a thread waits")
    assert 0.1 < waited_s < 5.0


def test_a_kernel_that_does_not_tell_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (None, "", "1 x 2"):
        path = tmp_path / "schedstat"
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(launch_processor, "_SCHEDSTAT", path)
        assert kept_waiting_s() == 0.0
