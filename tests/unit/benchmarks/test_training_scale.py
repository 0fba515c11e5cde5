"""What the moments of a training on several GPUs say: which steps are timed, and what a cut log means."""

from __future__ import annotations

from typing import Any

from benchmarks.models.training_scale import Bench, Logged, step_seconds


def moments(times: list[float], first: int = 1) -> list[dict[str, Any]]:
    return [{"step": step, "seconds": s} for step, s in enumerate(times, first)]


def logged(phase: str, start: int, lines: list[dict[str, Any]]) -> list[Logged]:
    return [Logged(phase=phase, start=start, moment=line) for line in lines]


def test_compiling_steps_and_checkpoints_are_not_timed():
    first = moments([30.0, 31.0, 32.0, 33.0, 34.0, 104.0, 105.0])
    found = step_seconds(logged("all", 1, first), "all")
    assert found == {5: 1.0, 7: 1.0}, (
        "steps 1 to 4 are warm-up and its end, step 6 waited for a checkpoint"
    )


def test_each_start_warms_up():
    lines = logged("all", 1, moments([9.0, 10.0, 11.0, 12.0, 13.5]))
    lines += logged("all", 2, moments([50.0, 51.0, 52.0, 53.0, 54.5], first=4))
    assert step_seconds(lines, "all") == {5: 1.5, 8: 1.5}
    assert step_seconds(lines, "one") == {}


def test_a_cut_log_keeps_what_is_equal():
    known = moments([1.0, 2.0, 3.0, 4.0])
    assert Bench._kept(known[:2], known) == 2
    assert Bench._kept([known[0], {"step": 2, "seconds": 9.0}], known) == 1
