"""The raylet among our processes, while others of them end or cannot be looked at."""

from __future__ import annotations

import psutil
import pytest

from cluster.ray import head_watch
from cluster.ray.head_watch import has_ended, own_raylet


class Process:
    """Has the given name and status, or raises the given error."""

    def __init__(self, told: str | psutil.Error) -> None:
        self._told = told

    def name(self) -> str:
        if isinstance(self._told, psutil.Error):
            raise self._told
        return self._told

    status = name


class Us:
    """This process, with the given children."""

    def __init__(self, *children: Process) -> None:
        self._children = children

    def children(self, *, recursive: bool) -> tuple[Process, ...]:
        assert recursive
        return self._children


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), psutil.AccessDenied(1)])
def test_a_child_without_a_name_hides_no_raylet(
    monkeypatch: pytest.MonkeyPatch, error: psutil.Error
) -> None:
    raylet = Process("raylet")
    monkeypatch.setattr(
        head_watch.psutil, "Process", lambda: Us(Process("sh"), Process(error), raylet)
    )
    assert own_raylet() is raylet
    monkeypatch.setattr(head_watch.psutil, "Process", lambda: Us(Process(error)))
    assert own_raylet() is None


@pytest.mark.parametrize(
    ("told", "ended"),
    [
        (psutil.STATUS_SLEEPING, False),
        (psutil.STATUS_ZOMBIE, True),
        (psutil.NoSuchProcess(1), True),
        (psutil.ZombieProcess(1), True),
        (psutil.AccessDenied(1), False),
    ],
)
def test_a_process_that_cannot_be_looked_at_has_not_ended(
    told: str | psutil.Error, ended: bool
) -> None:
    assert has_ended(Process(told)) is ended
