"""Time slices: which launches count for which step, and that a visitor's steps are made."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

from benchmarks.device.time_slices import Launch, Step, by_step, main

pytestmark = pytest.mark.opencl


def test_a_launch_counts_for_every_step_that_it_touches() -> None:
    launches = [
        Launch(began_s=at, ended_s=at + 0.9, ms=ms)
        for at, ms in ((0.0, 3.0), (1.0, 3.0), (2.0, 3.4), (3.0, 3.05), (4.0, 4.0))
    ]
    steps = [
        Step(name="open", began_s=2.5, ended_s=2.6),
        Step(name="free", began_s=3.1, ended_s=3.2),
        Step(name="open", began_s=4.895, ended_s=4.899),
        Step(name="free", began_s=0.1, ended_s=0.3),
    ]
    opened, freed = by_step(launches, steps)
    assert opened == ("open", pytest.approx(52.0), 2, 2, pytest.approx(0.95), pytest.approx(0.65))
    assert freed == ("free", pytest.approx(150.0), 2, 0, 0.0, 0.0)


def test_a_visitor_on_a_cpu_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steps.csv"
    words = ["time_slices", "--device", "cpu", "--launch-ms", "1", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", [*words, "--out", str(out)])
    began_s, had_cpu_s = time.monotonic(), time.process_time()
    assert main() == 0
    cpu_share = (time.process_time() - had_cpu_s) / (time.monotonic() - began_s)
    assert "launches, median" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    steps = [row["step"] for row in rows]
    assert steps[:2] == ["nothing", "open a context"]
    assert "load a program" in steps
    assert steps[-1] == "close the context"
    # One after the other, as far as the machine lets us run at all.
    at_most = float(rows[0]["took_ms"]) / float(rows[0]["median_ms"])
    assert int(rows[0]["launches"]) > 0.25 * at_most * min(1.0, cpu_share)
