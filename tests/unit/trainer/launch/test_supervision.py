"""The driver of a training on a cluster: which end of which process means what."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmperf_common.config import ConfigError
from llmperf_common.errors import Exit
from trainer.errors import BadInput, FitFailed, Interrupted
from trainer.launch.supervision import Gone, GroupLost, WorkerCrashed, supervised
from trainer.launch.worker import Failed, Report
from trainer.life.summary import RunSummary

Said = Sequence[Report | Gone | None]

DONE = RunSummary(
    folder=Path("run"), model="regressor", num_rows={}, num_families={}, metrics={}, notes=(), seconds=1.0
)  # fmt: skip
FITS = Report(is_fitting=True)
DEAD = Gone(who="process 1 on b", why="killed")
ECHO = Report(outcome=Failed(message="the first ended", exit_code=3, is_echo=True))


def failed(code: Exit | None, message: str) -> Report:
    return Report(outcome=Failed(message=message, exit_code=None if code is None else int(code)))


@dataclass
class FakeGroup:
    """Says what it was given, and the last of it for ever."""

    says: list[Said]
    step: int = 0
    is_lost: bool = False
    stopped: int = 0

    def begin(self) -> int:
        if self.is_lost:
            raise GroupLost("a process cannot be started (killed)")
        return self.step

    def poll(self) -> Said:
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    def stop(self) -> None:
        self.stopped += 1
        self.says = [[failed(Exit.INTERRUPTED, "interrupted after step 7"), FITS]]


@dataclass
class Run:
    """A training over fake groups; no time passes."""

    groups: list[FakeGroup]
    max_restarts: int = 3
    asked: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)
    now_s: float = 0.0
    num_started: int = 0
    num_ended: int = 0

    @contextlib.contextmanager
    def start(self) -> Iterator[FakeGroup]:
        self.num_started += 1
        try:
            yield self.groups[min(self.num_started, len(self.groups)) - 1]
        finally:
            self.num_ended += 1

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def end(self) -> RunSummary:
        return supervised(
            self.start,
            max_restarts=self.max_restarts,
            progress=self.lines.append,
            asked=self.asked,
            clock=lambda: self.now_s,
            sleep=self.pass_time,
        )


def test_the_first_process_speaks_and_its_summary_counts() -> None:
    talking = Report(lines=("step 1",), is_fitting=True)
    run = Run([FakeGroup([[talking, FITS], [None, FITS], [Report(outcome=DONE), FITS]])])
    assert run.end() is DONE
    assert run.lines == ["step 1"]
    assert run.num_ended == run.num_started == 1


def test_a_death_starts_all_again_and_is_said() -> None:
    lost = FakeGroup([[FITS, DEAD]])
    run = Run([lost, FakeGroup([[Report(outcome=DONE), FITS]], step=40)])
    assert run.end() is DONE
    assert run.lines == [
        "process 1 on b died (killed): all processes are started again from the newest checkpoint "
        "(1 of 3 restarts without a new checkpoint)",
        "the newest checkpoint is of step 40",
    ]
    assert run.num_ended == 2


def test_deaths_without_a_new_checkpoint_are_counted() -> None:
    run = Run([FakeGroup([[FITS, DEAD]], step=40)], max_restarts=2)
    with pytest.raises(FitFailed, match=r"process 1 on b died .* 3 starts in a row"):
        run.end()
    assert run.num_started == run.num_ended == 3


def test_a_new_checkpoint_begins_the_count_anew() -> None:
    groups = [FakeGroup([[FITS, DEAD]], step=step) for step in (0, 5, 10, 15)]
    run = Run([*groups, FakeGroup([[Report(outcome=DONE), FITS]], step=15)], max_restarts=1)
    assert run.end() is DONE
    assert run.num_started == 5


def test_a_group_that_cannot_be_started_counts_as_a_death() -> None:
    run = Run([FakeGroup([], is_lost=True)], max_restarts=1)
    with pytest.raises(FitFailed, match="cannot be started"):
        run.end()
    assert run.num_started == 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [(Exit.BAD_INPUT, BadInput), (Exit.USAGE, ConfigError), (Exit.INTERRUPTED, Interrupted)],
)
def test_a_foreseeable_error_arrives_as_itself(code: Exit, expected: type[Exception]) -> None:
    run = Run([FakeGroup([[failed(code, "what is wrong"), ECHO]])])
    with pytest.raises(expected, match="what is wrong") as caught:
        run.end()
    assert caught.value.exit_code == code  # type: ignore[attr-defined]
    assert run.num_started == run.num_ended == 1


def test_the_first_process_is_waited_for_a_moment() -> None:
    other = failed(Exit.BAD_INPUT, "the second process says")
    first = failed(Exit.BAD_INPUT, "the first process says")
    with pytest.raises(BadInput, match="the first"):
        Run([FakeGroup([[FITS, other], [FITS, None], [first, None]])]).end()
    with pytest.raises(BadInput, match="the second"):
        Run([FakeGroup([[FITS, other]])]).end()


def test_a_peer_that_fails_with_a_dead_one_is_no_cause() -> None:
    peer = failed(None, "Traceback\nRuntimeError: connection closed by peer")
    run = Run([FakeGroup([[peer, FITS], [None, DEAD]]), FakeGroup([[Report(outcome=DONE)]])])
    assert run.end() is DONE
    assert run.lines[0].startswith("process 1 on b died (killed)")


def test_a_first_process_that_lost_its_peer_is_no_cause() -> None:
    # Seen with gloo: the peer's error is here some polls before Ray knows of the death.
    lost = Report(outcome=Failed(message="another has ended", exit_code=3, is_echo=True))
    run = Run([FakeGroup([[lost, None], [None, DEAD]]), FakeGroup([[Report(outcome=DONE)]])])
    assert run.end() is DONE
    assert run.lines[0].startswith("process 1 on b died (killed)")


def test_peers_that_lost_a_process_which_ray_believes_alive_start_again() -> None:
    lost = Report(outcome=Failed(message="another has ended", exit_code=3, is_echo=True))
    with pytest.raises(FitFailed, match="another has ended"):
        Run([FakeGroup([[lost, FITS]])], max_restarts=1).end()


def test_a_bug_keeps_its_traceback() -> None:
    run = Run([FakeGroup([[failed(None, "Traceback\nKeyError: 'x'"), FITS]])], max_restarts=1)
    with pytest.raises(WorkerCrashed, match=r"(?s)2 times:\nTraceback\nKeyError: 'x'"):
        run.end()
    assert "KeyError: 'x'" in run.lines[0]


def test_a_full_disk_is_the_machines() -> None:
    full = Failed(message="No space left on device", error_number=errno.ENOSPC, path="/runs/a")
    with pytest.raises(OSError, match="No space left on device: '/runs/a'") as caught:
        Run([FakeGroup([[Report(outcome=full)]])]).end()
    assert caught.value.errno == errno.ENOSPC


def test_a_stop_in_the_fit_saves_and_ends() -> None:
    group = FakeGroup([[FITS, FITS]])
    run = Run([group])
    run.asked.set()
    with pytest.raises(Interrupted, match="after step 7"):
        run.end()
    assert group.stopped == 1
    assert run.lines == ["asked to end: the state is saved after the current step"]


def test_a_stop_outside_the_fit_ends_at_once() -> None:
    group = FakeGroup([[Report(lines=("preparing",)), FITS]])
    run = Run([group])
    run.asked.set()
    with pytest.raises(Interrupted, match="outside the fit"):
        run.end()
    assert group.stopped == 0
    assert run.num_ended == 1
