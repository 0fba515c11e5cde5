"""Whether a child spins or waits, by its processor time."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from workers.sandbox import processor_use
from workers.sandbox.processor_use import SpinCheck


@pytest.mark.parametrize(
    ("sleeps_s", "spins_at_s"),
    [(0.0, 0.3), (0.2, 0.7), (1.0, 3.4), (60.0, None)],
    ids=["spins", "begins late", "waited long", "sleeps"],
)
def test_only_a_process_that_computes_nearly_all_the_time_spins(
    monkeypatch: pytest.MonkeyPatch, sleeps_s: float, spins_at_s: float | None
) -> None:
    """A child that has waited for the driver's lock and then works is not taken for one that hangs."""
    now_s = 0.0
    monkeypatch.setattr(processor_use, "used_cpu_s", lambda _pid: max(0.0, now_s - sleeps_s))
    check = SpinCheck(1, now_s, least_cpu_s=0.0)
    found = None
    for step in range(1, 50):
        now_s = step / 10
        if check.spins(now_s) and found is None:
            found = now_s
    assert found == spins_at_s


@pytest.mark.parametrize(
    ("sleeping_look", "spins_at_look"),
    [(None, 11), (3, None)],
    ids=["always runs", "slept once"],
)
def test_a_process_that_waits_for_a_processor_spins(
    monkeypatch: pytest.MonkeyPatch, sleeping_look: int | None, spins_at_look: int | None
) -> None:
    """On a busy machine it gets a third of a processor, but never sleeps."""
    now_s, look = 0.0, 0
    monkeypatch.setattr(processor_use, "used_cpu_s", lambda _pid: now_s / 3)
    monkeypatch.setattr(processor_use, "_runs", lambda _pid: look != sleeping_look)
    check = SpinCheck(1, now_s, least_cpu_s=0.35)
    found = None
    for look in range(1, 40):
        now_s = look / 10
        check.look(now_s)
        if check.spins(now_s) and found is None:
            found = look
    assert found == spins_at_look


@pytest.mark.parametrize(("step_s", "is_enough"), [(0.001, False), (0.06, True)])
def test_looks_in_one_moment_count_once(
    monkeypatch: pytest.MonkeyPatch, step_s: float, *, is_enough: bool
) -> None:
    monkeypatch.setattr(processor_use, "used_cpu_s", lambda _pid: 0.0)
    monkeypatch.setattr(processor_use, "_runs", lambda _pid: True)
    check = SpinCheck(1, 0.0, least_cpu_s=0.0)
    for number in range(1, 12):
        check.look(number * step_s)
    assert check.spins(60.0) == is_enough


def test_only_a_process_that_computes_is_found_running() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    worker = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        worker.stdout.readline()  # it sleeps while Python starts
        checks = [
            SpinCheck(child.pid, time.monotonic(), least_cpu_s=0.2) for child in (sleeper, worker)
        ]
        deadline_s = time.monotonic() + 60
        while not checks[1].spins(time.monotonic()):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
            for check in checks:
                check.look(time.monotonic())
        assert not checks[0].spins(time.monotonic())
    finally:
        for child in (sleeper, worker):
            child.kill()
            child.communicate()


def test_an_ended_process_uses_nothing() -> None:
    assert processor_use.used_cpu_s(2**22 + 1) == 0.0
