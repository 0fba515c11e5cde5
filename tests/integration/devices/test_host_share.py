"""The host's share of a launch on a CPU device: blocks are made, by processes that take turns."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.device.host_share import MODES, main


@pytest.mark.opencl
def test_processes_take_turns_on_a_cpu_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "blocks.csv"
    words = ["host_share", "--device", "cpu", "--processes", "2", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", [*words, "--out", str(out)])
    main()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(MODES)
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(row["mode"], row["process"]) for row in rows] == [
        (mode, process) for mode in MODES for process in "01"
    ]
    assert all(float(row["event_ns"]) > 0 for row in rows)
