"""Whether a child spins or waits, by its processor time."""

from __future__ import annotations

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
    check = SpinCheck(1, now_s)
    found = None
    for step in range(1, 50):
        now_s = step / 10
        if check.spins(now_s) and found is None:
            found = now_s
    assert found == spins_at_s


def test_an_ended_process_uses_nothing() -> None:
    assert processor_use.used_cpu_s(2**22 + 1) == 0.0
