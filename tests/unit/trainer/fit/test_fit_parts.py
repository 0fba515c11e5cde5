"""The values and observers that the fit is made of: schedule, stopping, log, progress."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.fit.observers import JsonLines, Moment, ProgressLine, TensorBoard
from trainer.fit.schedule import learning_rate
from trainer.fit.stopping import Stopping
from trainer.regressor_config import OptimiserConfig


def _config(**values):
    given_values = {"learning_rate": 0.1, "warmup_steps": 10, "max_steps": 110, "final_share": 0.2}
    return OptimiserConfig(**given_values | values)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_rises_to_its_highest_at_the_last_step_of_the_warm_up(schedule):
    config = _config(schedule=schedule)
    assert [learning_rate(config, step) for step in (1, 5, 10)] == pytest.approx([0.01, 0.05, 0.1])


@pytest.mark.parametrize(
    ("schedule", "half", "end"),
    [("constant", 0.1, 0.1), ("linear", 0.06, 0.02), ("cosine", 0.06, 0.02)],
)
def test_the_rate_falls_to_its_final_share(schedule, half, end):
    config = _config(schedule=schedule)
    assert learning_rate(config, 60) == pytest.approx(half)
    assert learning_rate(config, 110) == pytest.approx(end)


def test_a_warm_up_longer_than_the_fit_is_only_cut_off():
    config = _config(warmup_steps=1000, max_steps=20)
    assert learning_rate(config, 20) == pytest.approx(0.1 * 20 / 1000)


def test_without_a_warm_up_the_first_step_has_nearly_the_highest_rate():
    assert learning_rate(_config(warmup_steps=0), 1) == pytest.approx(0.1, rel=0.01)


def test_it_stops_after_so_many_looks_without_a_better_one():
    state = Stopping()
    over = []
    for step, loss in enumerate((3.0, 2.0, 2.5, 2.0, 2.1), 1):
        state = state.after(step, loss)
        over.append(state.is_over(3))
    assert over == [False, False, False, False, True]
    assert (state.best_step, state.best_loss) == (2, 2.0)
    assert not state.is_over(0)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_what_was_seen_survives_json(seen):
    state = Stopping()
    for step, loss in enumerate(seen):
        state = state.after(step, loss)
    assert Stopping.from_json(json.loads(json.dumps(state.to_json()))) == state


def _moment(step, **values):
    given_values = {
        "step": step, "max_steps": 100, "loss": 1 / step, "validation_loss": None, "learning_rate": 0.1,
        "gradient_norm": 2.0, "samples_per_s": 1234.5, "tokens_per_s": 99999.0, "mfu": None,
        "memory_bytes": 1, "gpu_clock_mhz": None, "seconds": step * 0.5,
    }  # fmt: skip
    return Moment(**given_values | values)


def _steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_log_has_each_step_once(tmp_path):
    path = tmp_path / "fit.jsonl"
    first = JsonLines(path, after_step=0)
    for step in range(1, 8):
        first.show(_moment(step))
    first.close()
    with path.open("a") as file:
        file.write('{"step": 8, "lo')  # the process was killed here
    second = JsonLines(path, after_step=5)
    second.show(_moment(6))
    second.close()
    assert _steps(path) == [1, 2, 3, 4, 5, 6]


def test_a_log_that_begins_anew_is_empty(tmp_path):
    path = tmp_path / "fit.jsonl"
    for _ in range(2):
        log = JsonLines(path, after_step=0)
        log.show(_moment(1))
        log.close()
    assert _steps(path) == [1]


def test_a_line_of_the_log_holds_the_whole_moment(tmp_path):
    log = JsonLines(tmp_path / "fit.jsonl", after_step=0)
    log.show(_moment(4, validation_loss=0.5))
    log.close()
    line = json.loads((tmp_path / "fit.jsonl").read_text())
    assert line == dataclasses.asdict(_moment(4, validation_loss=0.5))


def test_the_user_reads_a_line_a_second_and_the_last_one():
    lines, now = [], 0.0
    line = ProgressLine(lines.append, clock=lambda: now)
    for step in (10, 20, 30, 40, 100):
        now = step * 0.04  # 10 steps are 0.4 s
        line.show(_moment(step, validation_loss=0.75 if step == 20 else None))
    assert [text.split(":")[0] for text in lines] == ["step 10/100", "step 40/100", "step 100/100"]
    assert "validation 0.7500" in lines[1]
    assert "1,234 samples/s" in lines[1]
    assert "30 s left" in lines[1]  # 60 steps of 0.5 s


def test_tensorboard_gets_the_numbers_that_there_are():
    class Writer:
        def __init__(self):
            self.scalars = []

        def add_scalar(self, name, value, step):
            self.scalars.append((name, value, step))

        def close(self):
            self.scalars.append("closed")

    writer = Writer()
    board = TensorBoard(writer)
    board.show(_moment(4))
    board.close()
    names = {one[0] for one in writer.scalars[:-1]}
    assert {"loss", "learning_rate", "tokens_per_s"} <= names
    assert not {"mfu", "validation_loss", "step"} & names
    assert writer.scalars[-1] == "closed"
    assert all(math.isfinite(one[1]) and one[2] == 4 for one in writer.scalars[:-1])
