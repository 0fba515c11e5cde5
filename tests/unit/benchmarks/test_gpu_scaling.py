"""What ``benchmarks.cluster.gpu_scaling`` reads from the events of runs on several cards and on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cluster import gpu_scaling


def write_events(folder: Path, events: list[dict[str, object]]) -> Path:
    (folder / "events").mkdir(parents=True)
    lines = [json.dumps(event) for event in events]
    for name, part in (("a", lines[::2]), ("b", lines[1::2])):
        text = "".join(f"{line}\n" for line in part)
        (folder / "events" / f"{name}.jsonl").write_text(text)
    return folder


def task(seat: str, *, claimed_s: float, began_s: float, ended_s: float, ok: int) -> list[dict[str, object]]:  # fmt: skip
    return [
        {"event": "claimed", "at_s": claimed_s, "seat": seat},
        {"event": "timed", "at_s": ended_s, "seat": seat, "turns": [[began_s, ended_s]]},
        {"event": "finished", "at_s": ended_s, "seat": seat, "ok": ok, "failed": {}},
    ]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    both = task("n/gpu0", claimed_s=10.0, began_s=11.0, ended_s=14.0, ok=60)
    both += task("n/gpu1", claimed_s=10.5, began_s=11.0, ended_s=15.0, ok=40)
    both += [{"event": "claimed", "at_s": 9.5, "seat": "n/gpu2"}]  # which then died
    one = task("n/gpu0", claimed_s=0.0, began_s=1.0, ended_s=4.0, ok=60)
    one += task("n/gpu0", claimed_s=0.0, began_s=4.0, ended_s=10.0, ok=40)
    return write_events(tmp_path / "both", both), write_events(tmp_path / "one", one)


def test_runs_are_held_against_the_last(runs: tuple[Path, Path]) -> None:
    both, one = (gpu_scaling.read_run(folder) for folder in runs)
    assert (both.num_ok, both.span_s, list(both.gpus)) == (100, 5.5, ["n/gpu0", "n/gpu1"])
    assert (one.num_ok, one.span_s, list(one.gpus)) == (100, 10.0, ["n/gpu0"])
    whole, first, second, alone, _ = gpu_scaling.rows_of([both, one])
    assert whole == ("both", "all", 2, 2, 100, 5.5, 18.2, 1.818, 7.0, "")
    assert first[1:5] == ("n/gpu0", 1, 1, 60)
    assert (first[-1], second[-1]) == (1.0, 0.0), "one had nothing left for a second"
    assert alone[7] == 1.0


def test_a_folder_without_a_finished_task_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_events(tmp_path / "none", [{"event": "claimed", "at_s": 1.0, "seat": "s"}])
    monkeypatch.setattr("sys.argv", ["gpu_scaling", str(folder)])
    assert gpu_scaling.main() == 3
    assert "no task was finished" in capsys.readouterr().err
