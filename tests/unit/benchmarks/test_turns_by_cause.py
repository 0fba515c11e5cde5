"""How ``benchmarks.cluster.turns_by_cause`` splits the device time that a second GPU costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cluster import turns_by_cause


def task(
    name: str, gpu: str, turn: tuple[float, float], *, configs_s: float, buffers_s: float = 0.0, failed: str = ""
) -> list[dict[str, object]]:  # fmt: skip
    who = {"task_id": name, "seat": gpu}
    return [
        {"event": "claimed", **who},
        {"event": "timed", **who, "turns": [turn], "decades": {"1e3": [4, configs_s, 0.1]}, "buffers_s": buffers_s},
        {"event": "finished", **who, "ok": 4, "failed": {failed: 1} if failed else {}},
    ]  # fmt: skip


def write(folder: Path, events: list[dict[str, object]]) -> Path:
    (folder / "events").mkdir(parents=True)
    text = "".join(f"{json.dumps(event)}\n" for event in events)
    (folder / "events" / "a.jsonl").write_text(text)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    many = task("dies", "gpu1", (10.0, 12.0), configs_s=1.5, failed="hang")
    many += task("beside", "gpu0", (11.0, 11.8), configs_s=0.3, buffers_s=0.4)
    many += task("before", "gpu0", (10.0, 11.0), configs_s=0.9)
    many += task("own", "gpu1", (11.9, 12.9), configs_s=1.0)
    many += task("only here", "gpu0", (20.0, 30.0), configs_s=9.0)
    one = task("dies", "gpu0", (1.0, 2.5), configs_s=1.5, failed="hang")
    one += task("beside", "gpu0", (3.0, 3.3), configs_s=0.3)
    one += task("before", "gpu0", (4.0, 4.8), configs_s=0.8)
    one += task("own", "gpu0", (5.0, 6.0), configs_s=1.0)
    return write(tmp_path / "many", many), write(tmp_path / "one", one)


def test_what_a_death_on_another_gpu_costs(runs: tuple[Path, Path]) -> None:
    many, one = (turns_by_cause.read_tasks(folder) for folder in runs)
    assert turns_by_cause.rows_of(many, one, lock_s=0.3) == [
        ("all", 4, 4.8, 3.6, 0.1, 0.4, 0.7),
        ("beside a death on another GPU", 1, 0.8, 0.3, 0.0, 0.4, 0.1),
        ("others", 2, 2.0, 1.8, 0.1, 0.0, 0.1),
        ("with a fault or hang", 1, 2.0, 1.5, 0.0, 0.0, 0.5),
    ]


def test_runs_without_a_common_task_are_told(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write(runs[0].parent / "empty", [])
    monkeypatch.setattr("sys.argv", ["turns_by_cause", str(runs[0]), str(empty)])
    assert turns_by_cause.main() == 3
    assert "no task was timed in both runs" in capsys.readouterr().err
