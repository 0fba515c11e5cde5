"""The Python API as a researcher uses it: simple arguments, results that say what they are, one base of errors."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import llmperf
from tests.integration.conftest import Collected, Trained
from tests.support.collecting import (
    KERNELS,
    descendants,
    is_running,
    replay_file,
    wait_until,
    write_kernels,
)

QUICK = {"timing.spin_up_ms": 0, "store.commit_interval_s": 0.1, "store.publish_interval_s": 0.1}


def assert_html(text: str, *words: str) -> None:
    """Well-formed, script-free, and it says all of ``words``."""
    opened: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Balance(convert_charrefs=True).feed(text)
    assert opened == []
    assert "<script" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text}"


@pytest.fixture
def device(tmp_path: Path) -> str:
    return replay_file(tmp_path / "replay.json")


def test_collect_with_simple_arguments(tmp_path: Path, device: str) -> None:
    corpus = write_kernels(tmp_path / "k", ["k0", "k1"])
    told: list[llmperf.CollectProgress] = []
    summary = llmperf.collect(
        corpus,
        tmp_path / "data",
        device=device,
        preset="demo",
        samples_per_kernel=3,
        seed=7,
        max_time=60,
        overrides=QUICK,
        progress=told.append,
    )
    assert (summary.num_planned, summary.num_ok, summary.num_pending) == (6, 6, 0)
    assert summary.stop_reason == "complete"
    assert_html(summary._repr_html_(), "complete", "2 of 2")
    assert (told[0].num_tasks, told[0].num_tasks_done, told[0].eta_s) == (2, 0, None)
    assert (told[-1].num_tasks_done, told[-1].num_ok, told[-1].eta_s) == (2, 6, 0)
    assert {one.kernel for one in told[1:]} == {"k0", "k1"}
    assert re.fullmatch(r"2/2 tasks  6 ok  [\d.]+ ok/s  ETA 0 s", str(told[-1]))
    assert llmperf.open_dataset(tmp_path / "data").run.config["plan"]["seed"] == 7


@pytest.mark.slow
def test_it_is_silent_unless_progress_is_asked_for(
    tmp_path: Path, device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = write_kernels(tmp_path / "k", ["k0"])
    wanted = {"device": device, "samples_per_kernel": 2, "overrides": QUICK}
    llmperf.collect(corpus, tmp_path / "quiet", **wanted)
    assert capfd.readouterr() == ("", "")
    llmperf.collect(corpus, tmp_path / "shown", progress=True, **wanted)
    out, err = capfd.readouterr()
    assert out == ""
    assert "1 kernels; plan" in err


def test_several_sources_are_all_kept(tmp_path: Path, device: str) -> None:
    one, other = write_kernels(tmp_path / "a", ["k0", "k1"]), KERNELS / "saxpy.cl"
    llmperf.collect(
        [one, str(other)], tmp_path / "d", device=device, samples_per_kernel=1, overrides=QUICK
    )
    names = llmperf.open_dataset(tmp_path / "d").kernels(["name"]).column("name").to_pylist()
    assert sorted(names) == ["k0", "k1", "saxpy"]


def test_a_single_text_is_a_strategy_and_an_override(tmp_path: Path, device: str) -> None:
    corpus = write_kernels(tmp_path / "k", ["k0"])
    llmperf.collect(
        corpus,
        tmp_path / "data",
        device=device,
        strategies="simple",
        overrides="plan.samples_per_kernel=3",
    )
    samples = llmperf.open_dataset(tmp_path / "data").samples()
    assert samples.num_rows == 3
    assert set(samples.column("input_strategy").to_pylist()) == {"simple"}


@pytest.mark.slow
def test_a_config_file_and_overrides(tmp_path: Path, device: str) -> None:
    (tmp_path / "c.toml").write_text("[plan]\nsamples_per_kernel = 5\nseed = 3\n")
    corpus = write_kernels(tmp_path / "k", ["k0"])
    summary = llmperf.collect(
        str(corpus),
        str(tmp_path / "d"),
        device=device,
        config=tmp_path / "c.toml",
        seed=4,
        overrides=[
            *(f"{key}={value}" for key, value in QUICK.items()),
            "plan.samples_per_kernel=2",
        ],
    )
    assert summary.num_planned == 2
    assert llmperf.open_dataset(tmp_path / "d").run.config["plan"]["seed"] == 4


@pytest.mark.parametrize(
    ("wrong", "exit_code", "words"),
    [
        ({"overrides": {3: None}}, 2, "overrides={3: None}: give values by key"),
        ({"overrides": [3]}, 2, "overrides=[3]: give values by key"),
        ({"overrides": 3}, 2, "overrides=3: give values by key"),
        ({"overrides": {"plan.sede": 1}}, 2, "'plan.sede' is unknown; did you mean 'plan.seed'"),
        ({"samples_per_kernel": 0}, 2, "plan.samples_per_kernel"),
        ({"max_time": -1}, 2, "limits.max_time_s"),
        ({"max_time": "soon"}, 2, "20m"),
        ({"preset": "dmeo"}, 2, "did you mean 'demo'"),
        ({"device": "abacus"}, 2, "abacus"),
        ({"corpus": "nowhere"}, 3, "nowhere"),
        ({"corpus": []}, 3, "no source given"),
    ],
)
def test_a_mistake_is_one_kind_of_error(
    tmp_path: Path, device: str, wrong: dict[str, Any], exit_code: int, words: str
) -> None:
    corpus = write_kernels(tmp_path / "k", ["k0"])
    arguments = {"corpus": corpus, "out": tmp_path / "d", "device": device, **wrong}
    with pytest.raises(llmperf.LlmperfError, match=re.escape(words)) as caught:
        llmperf.collect(**arguments)
    assert caught.value.exit_code == exit_code
    assert not (tmp_path / "d").exists()


def test_a_callback_may_change_the_working_directory(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the run ended: "d is no longer the dataset's folder"."""
    write_kernels(tmp_path / "k", ["k0", "k1"])
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    summary = llmperf.collect(
        "k", "d", device=device, samples_per_kernel=2, overrides=QUICK,
        progress=lambda _progress: os.chdir(tmp_path / "other"),
    )  # fmt: skip
    assert summary.num_ok == 4
    assert llmperf.verify(tmp_path / "d").clean
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.slow
def test_an_error_of_progress_ends_the_run_and_it_goes_on(tmp_path: Path, device: str) -> None:
    corpus = write_kernels(tmp_path / "k", ["k0", "k1", "k2"])

    def fail(progress: llmperf.CollectProgress) -> None:
        if progress.num_tasks_done == 2:
            raise RuntimeError("the bar is broken")

    wanted = {"device": device, "samples_per_kernel": 2, "overrides": QUICK}
    with pytest.raises(RuntimeError, match="the bar is broken"):
        llmperf.collect(corpus, tmp_path / "d", progress=fail, **wanted)
    again = llmperf.collect(corpus, tmp_path / "d", **wanted)
    assert again.num_ok == 6
    assert again.seconds < 55, "it waited for leases of its own to run out"
    assert llmperf.verify(tmp_path / "d").clean


_SCRIPT = """
import signal, sys, llmperf
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
corpus, out, device = sys.argv[1:]
def collect():
    llmperf.collect(corpus, out, device=device, samples_per_kernel=4,
                    overrides={"timing.spin_up_ms": 0, "store.commit_interval_s": 0, "store.publish_interval_s": 0.05})
try:
    collect()
except KeyboardInterrupt:
    done = llmperf.open_dataset(out).num_tasks
    print(done, llmperf.verify(out).clean, flush=True)
    sys.stdin.readline()
    collect()
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_committed_and_the_same_process_goes_on(tmp_path: Path) -> None:
    """As in a notebook: the cell is interrupted, and run again."""
    names = [f"k{n}" for n in range(12)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.02} for name in names]
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    corpus = write_kernels(tmp_path / "k", names)
    command = [sys.executable, "-c", _SCRIPT, str(corpus), str(tmp_path / "d"), device]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:
        wait_until(lambda: len(list((tmp_path / "d").glob("manifest-*.json"))) > 1)
        children = descendants(run.pid)
        run.send_signal(signal.SIGINT)
        assert run.stdout is not None
        line = run.stdout.readline()
        assert line, f"it ended without Ctrl-C being seen: {run.communicate(timeout=30)[1]}"
        done, clean = line.split()
        assert 0 < int(done) < len(names)
        assert clean == "True"
        assert not [pid for pid in children if is_running(pid)]
        again_s = time.monotonic()
        _, err = run.communicate("go on\n", timeout=100)
        assert run.returncode == 0, err
    assert time.monotonic() - again_s < 55, "it waited for leases of its own to run out"
    assert llmperf.open_dataset(tmp_path / "d").num_tasks == len(names)
    assert llmperf.verify(tmp_path / "d").clean


def test_verify(copied: Collected) -> None:
    good = llmperf.verify(copied.out)
    assert good.clean
    assert good.problems == ()
    assert_html(good._repr_html_(), "clean")
    shard = next((copied.out / "samples").glob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    bad = llmperf.verify(copied.out)
    assert not bad.clean
    assert {problem.kind for problem in bad.problems} <= {"bytes", "damaged"}
    assert shard.name in bad.problems[0].name
    assert_html(bad._repr_html_(), "problem", shard.name)


def test_a_dataset_says_what_it_is(three_kernels: Collected) -> None:
    dataset = llmperf.open_dataset(three_kernels.out)
    assert repr(dataset) == (
        f"<Dataset {three_kernels.out}: 12 samples of 3 tasks, version {dataset.manifest.version}>"
    )
    assert_html(dataset._repr_html_(), "3 of 3", "replay")
    stats = dataset.stats()
    assert (stats.num_samples, stats.num_kernels) == (12, 3)
    assert_html(stats._repr_html_(), "num_samples")


def test_the_rows_of_a_kernel_come_by_size(three_kernels: Collected) -> None:
    dataset = llmperf.open_dataset(three_kernels.out)
    rows = dataset.of_kernel("k1", ["global_size", "median_ns"])
    assert rows.column_names == ["global_size", "median_ns"]
    assert rows.num_rows == 4
    sizes = [row[0] for row in rows.column("global_size").to_pylist()]
    assert sizes == sorted(sizes)
    with pytest.raises(llmperf.LlmperfError, match="no kernel 'k9'"):
        dataset.of_kernel("k9")
    with pytest.raises(KeyError, match="medain_ns"):
        dataset.of_kernel("k1", ["medain_ns"])


def test_train_evaluate_report(trained: Trained, tmp_path: Path) -> None:
    told: list[str] = []
    run = llmperf.train(
        trained.data,
        tmp_path / "run",
        preset="log-linear",
        overrides={"judge.bootstrap_replicates": 0},
        progress=told.append,
    )
    assert told
    assert_html(run._repr_html_(), "log-linear", "MAPE %")
    scored = llmperf.evaluate(tmp_path / "run", trained.data, tmp_path / "evaluation")
    assert not scored.seen
    assert_html(scored._repr_html_(), "on test", "MAPE %")
    seen = llmperf.evaluate(
        tmp_path / "run", trained.data, tmp_path / "seen", split="all", allow_seen=True
    )
    assert_html(seen._repr_html_(), "SEEN")
    page = llmperf.report(trained.data, tmp_path / "r.html", evaluation=tmp_path / "evaluation")
    assert page == tmp_path / "r.html"
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    names = llmperf.open_dataset(trained.data).kernels(["name"])["name"].to_pylist()
    for kernels, expected in ((2, 2), ("all", len(names)), (names[:1], 1), ((), len(names))):
        llmperf.report(trained.data, page, kernels=kernels)
        assert page.read_text("utf-8").count('<details class="kernel') == expected, kernels
    for wrong in (0, "some", ["no such kernel"]):
        with pytest.raises(llmperf.LlmperfError, match=r"kernels=.*list of names|no such kernel"):
            llmperf.report(trained.data, page, kernels=wrong)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(llmperf.LlmperfError, match="holds no report of llmperf"):
        llmperf.report(trained.data, tmp_path / "mine.html")
    again = llmperf.report(tmp_path / "evaluation", tmp_path / "e.html")  # still the function
    assert again.is_file()
    with pytest.raises(llmperf.LlmperfError, match="not a dataset"):
        llmperf.report(tmp_path / "nowhere", tmp_path / "n.html")
    assert not (tmp_path / "n.html").exists()


def test_what_a_run_folder_holds_of_another_is_refused(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.run, tmp_path / "run")
    with pytest.raises(llmperf.LlmperfError, match="holds another run") as caught:
        llmperf.train(
            trained.data, tmp_path / "run", preset="log-linear", overrides=["train.seed=9"]
        )
    assert caught.value.exit_code == 2
