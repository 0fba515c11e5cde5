"""How a child ended, as its parent tells: by itself, killed by the parent, or killed by another process."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.collecting import REPOSITORY
from workers.sandbox.child import Child


@contextmanager
def stub(folder: Path, where: str = "") -> Iterator[Child]:
    """A stub child that is ready, or has done after that what ``where`` says."""
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    child = Child(
        "tests.support.processes.stub_child",
        where,
        environment={"PYTHONPATH": path},
        scratch=folder,
    )
    try:
        assert select.select([child], [], [], 30)[0], "it does not start"
        yield child
    finally:
        child.kill()


def await_hang_up(child: Child) -> None:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if select.select([child], [], [], 1)[0] and child.receive()[1]:
            return
    raise AssertionError("it does not hang up")


@pytest.mark.parametrize(
    ("where", "by_another", "how"),
    [
        ("killed start", True, "signal SIGKILL that was not its parent's"),
        ("raises start", False, "child process ended with"),
        ("leaves start", False, "child process ended with exit code 0"),
        ("garbled start", False, "sent an unreadable message"),
        ("crash start", False, "signal SIGSEGV"),
    ],
)
def test_who_has_hung_up(tmp_path: Path, where: str, by_another: bool, how: str) -> None:
    with stub(tmp_path, where) as child:
        await_hang_up(child)
        child.kill()
        assert child.was_killed_by_another == by_another
        assert how in child.describe_end()


def test_somebody_elses_kill_that_is_seen_late(tmp_path: Path) -> None:
    with stub(tmp_path) as child:
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.kill()
        assert child.was_killed_by_another


def test_our_own_kill_is_ours(tmp_path: Path) -> None:
    with stub(tmp_path) as child:
        child.kill()
        assert "signal SIGKILL of its parent" in child.describe_end()
        assert not child.was_killed_by_another


def test_who_sent_nonsense_is_not_excused_by_what_came_after(tmp_path: Path) -> None:
    with stub(tmp_path, "garbled start") as child:
        heard = child.receive()[1]
        assert heard or select.select([child], [], [], 30)[0], "nonsense lies there, unread or read"
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if not heard:
            await_hang_up(child)
        child.kill()
        assert not child.was_killed_by_another


def test_where_nobody_can_tell_it_was_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stub(tmp_path) as child:
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr("workers.sandbox.child._PROC", tmp_path / "no-proc")
        child.kill()
        assert not child.was_killed_by_another


@pytest.mark.parametrize("is_killed", [False, True])
def test_closing(tmp_path: Path, is_killed: bool) -> None:
    with stub(tmp_path) as child:
        if is_killed:
            os.kill(child.pid, signal.SIGKILL)
        assert child.close(timeout_s=30) == (not is_killed)
        assert child.was_killed_by_another == is_killed
