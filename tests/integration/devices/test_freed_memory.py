"""``benchmarks.device.freed_memory`` on a CPU device: every event has its row, those of another process too."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.device.freed_memory import WHATS, longer_until, main


def test_it_ends_with_the_first_launch_that_is_as_short_as_the_next_ones() -> None:
    times_s = [0.001 * at for at in range(40)]
    ratios = [1.1, 1.0, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, *[1.0] * 30]
    assert longer_until(times_s, ratios) == (pytest.approx(10.0), pytest.approx(1.1))
    assert longer_until(times_s, [1.0] * 40) == (0.0, 1.0)


@pytest.mark.opencl
@pytest.mark.slow
def test_events_on_a_cpu_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "events.csv"
    words = ["freed_memory", "--device", "cpu", "--sizes-mib", "1", "2", "4", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", [*words, "--out", str(out)])
    main()
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["what"] for row in rows] == ["free", "free", "free", *WHATS[1:], "free"]
    assert [row["mib"] for row in rows] == ["1", "2", "4", *["2"] * 5]
    assert [row["kernel"] for row in rows] == [*["read"] * 7, "compute"]
    assert all(float(row["launch_us"]) > 0 and float(row["factor"]) > 0 for row in rows)
    assert capsys.readouterr().out.count("longer for") == len(rows)
