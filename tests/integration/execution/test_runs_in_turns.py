"""Runs of ours and of the plain loop in turns, on a CPU device."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.collecting import run_offsets, runs_in_turns
from benchmarks.collecting.collectors.log import read_log, rows_of
from benchmarks.collecting.collectors.plain_loop import BUFFERS_VARIABLE
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import write_kernels
from workers.corpus.read import read_sources, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ORDER = "ours plain plain-shuffled plain-bound plain-config plain-cleared unbound ours+limits.compile_children=1"


def test_each_kind_times_the_same_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "k.parquet", read_sources([write_kernels(tmp_path / "k", ["k0"])]))
    out = tmp_path / "out"
    words = ["runs_in_turns", str(tmp_path / "k.parquet"), "--device", "cpu", "--order", ORDER]
    words += ["--cold", "--set", "plan.samples_per_kernel=6", "--set", 'plan.strategies=["simple"]']
    monkeypatch.setattr("sys.argv", [*words, "--out", str(out)])
    runs_in_turns.main()
    header, *rows = csv.reader((out / "medians.csv").read_text(encoding="utf-8").splitlines())
    assert header[2:] == [f"{number:02}_{kind}" for number, kind in enumerate(ORDER.split())]
    assert len(rows) == 6
    assert all(float(cell) > 0 for row in rows for cell in row[2:])
    last = open_dataset(out / f"07_{ORDER.split()[7]}").run.config["limits"]
    assert last["compile_children"] == 1
    plain, shuffled, bound = (
        [row["sample_id"] for row in rows_of(read_log(out / name / "log.jsonl"))]
        for name in ("01_plain", "02_plain-shuffled", "03_plain-bound")
    )
    assert plain == bound
    assert shuffled != plain
    assert sorted(shuffled) == sorted(plain)
    told = [runs_in_turns.variables_of(kind)[BUFFERS_VARIABLE] for kind in ORDER.split()[1:6]]
    assert told == ["kernel", "kernel", "kernel", "config", "cleared"]
    words = ["run_offsets", str(out / "medians.csv"), "--by-kind", "--from-us", "0"]
    monkeypatch.setattr("sys.argv", words)
    run_offsets.main()
    assert "6 configs of 1 kernels" in capsys.readouterr().out


@pytest.mark.parametrize("order", ["plain ours", "ours other", ""])
def test_an_order_that_cannot_be_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    order: str,
) -> None:
    words = ["runs_in_turns", "k.parquet", "--order", order, "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        runs_in_turns.main()
    assert "--order" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
