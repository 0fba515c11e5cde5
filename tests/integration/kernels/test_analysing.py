"""Memory analysis as a step of a task and ahead of a run: what it finds is used, and its death costs no kernel."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmperf.kept_analyses import KeptAnalyses
from llmperf_common.analysis import Analysis, Extent, Polynomial
from llmperf_common.files.outputs import OutputTaken
from llmperf_common.store.tables.reader import open_dataset
from tests.integration.collect.test_collect_replay import FAST, assert_clean
from tests.support.collecting import (
    KERNELS,
    Collect,
    llmperf_command,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf
from workers.corpus.read import read_corpus, read_sources
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.execution.analyse_ahead import analyse_corpus

pytestmark = pytest.mark.opencl

NAMES = ("first", "second", "third")
TERM = {"factors": ["global_size_0"], "coefficient": 1}
GUARD = {"cap_constant": 0, "cap_terms": [{"factors": ["n"], "coefficient": 1}]}


def recorded(name: str, *, data_dependent: bool = False) -> dict[str, Any]:
    """The analysis of one of ``write_kernels``'s maps."""
    extents = [
        {"position": at, "constant": 0, "terms": [TERM], "validated": True, "reason": None, **GUARD}
        for at in (0, 1)
    ]
    return {"kernel": name, "analysis": extents, "data_dependent": data_dependent}


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    """Kernel name to its row, with its samples under ``samples``."""
    dataset = open_dataset(out)
    found = {row["task_id"]: {**row, "samples": []} for row in dataset.kernels().to_pylist()}
    for sample in dataset.samples().to_pylist():
        found[sample["task_id"]]["samples"].append(sample)
    return {row["name"]: row for row in found.values()}


def labels(row: dict[str, Any]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(sample["input_strategies"]) for sample in row["samples"])


def collect(tmp_path: Path, *options: str, corpus: Path | None = None, **content: Any) -> str:
    """Collect on a replay device; returns what was said."""
    if corpus is None:
        corpus = write_kernels(tmp_path / "kernels", NAMES)
    device = replay_file(tmp_path / "r.json", **content)
    named = ("--corpus", corpus, "--out", tmp_path / "data", "--device", device)
    done = llmperf("collect", *named, *FAST, *options)
    assert done.code == 0, done.err
    assert_clean(tmp_path / "data")
    return done.err


def test_what_was_found_is_planned_by_and_stored(tmp_path: Path) -> None:
    analyses = [recorded("first"), recorded("second", data_dependent=True)]
    said = collect(tmp_path, analyses=analyses)
    assert "planned 18 = ok 18 + failed 0 + pending 0" in said
    found = rows_of(tmp_path / "data")
    assert labels(found["first"]) == {("memory_analysis",): 6}
    assert labels(found["third"]) == {("simple",): 6}, "its fall-back carries its own label"
    assert [entry["cap_terms"] for entry in found["first"]["analysis"]] == [GUARD["cap_terms"]] * 2
    assert "cannot be probed" in found["third"]["analysis_failure"]
    assert {entry["constant"] for entry in found["third"]["analysis"]} == {None}
    assert all("cannot be probed" in entry["reason"] for entry in found["third"]["analysis"])
    dependent = {
        name: {sample["checks"]["data_dependent"] for sample in row["samples"]}
        for name, row in found.items()
    }
    assert dependent == {"first": {False}, "second": {True}, "third": {None}}
    again = collect(tmp_path, analyses=analyses)
    assert "planned 18 = ok 18 + failed 0 + pending 0" in again, "counted by the stored analysis"


@pytest.mark.slow
def test_two_strategies_share_the_configs(tmp_path: Path) -> None:
    analyses = [recorded(name) for name in NAMES]
    collect(tmp_path, "--strategy", "memory_analysis,decoupled", analyses=analyses)
    for row in rows_of(tmp_path / "data").values():
        assert labels(row) == {("memory_analysis",): 3, ("decoupled",): 3}
        for sample in row["samples"]:
            first, second, n = sample["args"]
            assert first["elements"] == second["elements"]
            assert first["elements"] == min(sample["global_size"][0], n["value"])


@pytest.mark.slow
def test_inputs_that_were_chosen_are_planned_and_recorded(tmp_path: Path) -> None:
    inputs = {
        "floats_free": True, "scalars": [{"position": 2, "value": "low"}], "contents": "signed",
        "contents_limit": 2, "num_tried": 4, "plain_share": 0.0, "active_share": 0.9, "reason": None,
    }  # fmt: skip
    analyses = [{**recorded("first"), "inputs": inputs}, recorded("second"), recorded("third")]
    collect(tmp_path, "--set", "plan.plain_share=0", analyses=analyses)
    found = rows_of(tmp_path / "data")
    assert found["first"]["inputs"] == inputs
    assert found["second"]["inputs"] is None
    for sample in found["first"]["samples"]:
        first, second, n = sample["args"]
        assert n["value"] == 1
        assert (first["contents"], first["contents_limit"]) == ("signed", 2)
        assert first["elements"] == second["elements"] == 1, "the extent follows the chosen value"
    for sample in found["second"]["samples"]:
        assert sample["args"][2]["value"] == sample["global_size"][0]


def test_a_dead_or_hanging_analysis_costs_its_kernel_the_analysis_only(tmp_path: Path) -> None:
    said = collect(
        tmp_path,
        "--set",
        "limits.analysis_timeout_s=1.5",
        analyses=[recorded(name) for name in NAMES],
        behaviours=[
            {"kernel": "first", "action": "crash_analysis"},
            {"kernel": "second", "action": "hang_analysis"},
        ],
    )
    assert "planned 18 = ok 18 + failed 0 + pending 0" in said
    found = rows_of(tmp_path / "data")
    assert "SIGSEGV" in found["first"]["analysis_failure"]
    assert "limits.analysis_timeout_s" in found["second"]["analysis_failure"]
    assert found["third"]["analysis_failure"] is None
    assert [labels(found[name]) for name in NAMES] == [
        {("simple",): 6}, {("simple",): 6}, {("memory_analysis",): 6},
    ]  # fmt: skip


@pytest.mark.slow
def test_a_death_that_does_not_come_back_costs_nothing(tmp_path: Path) -> None:
    collect(
        tmp_path,
        analyses=[recorded(name) for name in NAMES],
        behaviours=[{"kernel": "*", "action": "crash_analysis", "once": True}],
    )
    for row in rows_of(tmp_path / "data").values():
        assert labels(row) == {("memory_analysis",): 6}


@pytest.mark.slow
def test_a_simple_run_analyses_nothing(tmp_path: Path) -> None:
    said = collect(
        tmp_path,
        "--strategy",
        "simple",
        behaviours=[{"kernel": "*", "action": "crash_analysis"}],
    )
    assert "ok 18" in said
    found = rows_of(tmp_path / "data")
    assert all(row["analysis"] == [] and row["index_roles"] is None for row in found.values())


# ------------------------------------------------------------------ ahead of a run


def replay_ref(tmp_path: Path, **content: Any) -> DeviceRef:
    ref = choose(replay_file(tmp_path / "ahead.json", **content))
    assert isinstance(ref, DeviceRef)
    return ref


def test_a_corpus_is_analysed_by_killable_children(tmp_path: Path) -> None:
    corpus = read_sources([write_kernels(tmp_path / "kernels", NAMES)])
    ref = replay_ref(
        tmp_path,
        analyses=[recorded(name) for name in NAMES],
        behaviours=[
            {"kernel": "first", "action": "crash_analysis"},
            {"kernel": "second", "action": "hang_analysis"},
        ],
    )
    said: list[tuple[int, int]] = []
    found = analyse_corpus(
        corpus, ref, num_children=2, timeout_s=1.5, progress=lambda *counts: said.append(counts)
    )
    assert [done for done, _ in said] == [1, 2, 3]
    assert (found.sha256, found.skipped) == (corpus.sha256, corpus.skipped)
    by_name = {one.name: one.analysis for one in found.kernels}
    assert "SIGSEGV" in by_name["first"].failure
    assert "limits.analysis_timeout_s" in by_name["second"].failure
    assert by_name["third"].extent(1).form is not None
    silent = replay_ref(tmp_path, behaviours=[{"kernel": "*", "action": "crash_analysis"}])
    assert analyse_corpus(found, silent) == found, "what is known is not asked again"


def test_the_command_stores_the_analysis_and_collect_takes_it(tmp_path: Path) -> None:
    sources = write_kernels(tmp_path / "kernels", NAMES)
    device = replay_file(tmp_path / "ahead.json", analyses=[recorded(name) for name in NAMES])
    corpus = tmp_path / "corpus.parquet"
    done = llmperf("corpus", "build", sources, "--out", corpus, "--analyse", "--device", device)
    assert done.code == 0, done.err
    assert "analysed 3 of 3 kernels" in done.err
    assert all(one.analysis is not None for one in read_corpus(corpus).kernels)
    crashing = [{"kernel": "*", "action": "crash_analysis"}]
    collect(tmp_path, corpus=corpus, behaviours=crashing)
    for row in rows_of(tmp_path / "data").values():
        assert labels(row) == {("memory_analysis",): 6}
        assert row["analysis"][0]["validated"]


def test_an_interrupted_analysis_of_a_corpus_goes_on(tmp_path: Path) -> None:
    """Before, Ctrl-C and a full disk lost hours of analyses."""
    sources = write_kernels(tmp_path / "kernels", NAMES)
    corpus = tmp_path / "c.parquet"
    build = ("corpus", "build", sources, "--out", corpus, "--analyse", "--device")
    hanging = [{"kernel": "third", "action": "hang_analysis"}]
    analyses = [recorded(name) for name in NAMES]
    device = replay_file(tmp_path / "r.json", analyses=analyses, behaviours=hanging)
    process = subprocess.Popen(llmperf_command(*build, device), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(list(tmp_path.glob(".c.parquet.*.analyses/*.json"))) == 2)
    (kept,) = tmp_path.glob(".c.parquet.*.analyses")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"finished analyses are kept in {kept}; run the same command again to resume" in err
    assert not corpus.exists()
    crashing = [{"kernel": name, "action": "crash_analysis"} for name in NAMES[:2]]
    replay_file(tmp_path / "r.json", analyses=analyses, behaviours=crashing)
    done = llmperf(*build, device)
    assert done.code == 0, done.err
    assert "2 kernels were analysed before an interruption" in done.err
    for one in read_corpus(corpus).kernels:
        assert one.analysis is not None
        assert one.analysis.extent(0).validated, "of the first start, not of the crashing device"
    assert not kept.exists()


def test_analyses_are_kept_for_one_user_device_and_kernel_only(tmp_path: Path) -> None:
    """Before, files behind a link of that name were removed, and a stranger's analyses were taken."""
    corpus = read_sources([write_kernels(tmp_path / "kernels", ["first"])])
    (kernel,) = corpus.kernels
    out, device = tmp_path / "c.parquet", replay_ref(tmp_path)
    kept = KeptAnalyses(out, device)
    extent = Extent(position=0, form=Polynomial(constant=1))
    kept.write(kernel.kernel_id, Analysis(extents=(extent,), data_dependent=False))
    assert KeptAnalyses(out, device).joined(corpus)[1] == 1
    other = KeptAnalyses(out, replace(device, selector=f"{device.selector}-2"))
    assert other.joined(corpus)[1] == 0, "another device"
    foreign = replace(extent, position=9)
    kept.write(kernel.kernel_id, Analysis(extents=(foreign,), data_dependent=False))
    assert kept.joined(corpus)[1] == 0, "no argument of this kernel"
    (kept.folder / "mine-v2.json").write_text("{}")
    (kept.folder / ".llmperf-0a1b.partial").write_text("{")
    kept.remove()
    assert [path.name for path in kept.folder.iterdir()] == ["mine-v2.json"]
    kept.folder.chmod(0o777)
    with pytest.raises(OutputTaken, match="other users own it or may write"):
        KeptAnalyses(out, device)
    kept.folder.chmod(0o700)
    assert KeptAnalyses(out, device).folder == kept.folder
    kept.folder.rename(tmp_path / "elsewhere")
    kept.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputTaken, match="is a link"):
        KeptAnalyses(out, device)
    assert (tmp_path / "elsewhere" / "mine-v2.json").exists()


def test_a_device_without_an_analysis_to_make_is_a_usage_error(tmp_path: Path) -> None:
    sources = write_kernels(tmp_path / "kernels", NAMES)
    done = llmperf("corpus", "build", sources, "--out", tmp_path / "c.parquet", "--device", "cpu")
    assert done.code == 2
    assert "--analyse" in done.err
    assert not (tmp_path / "c.parquet").exists()


# ------------------------------------------------------------------ on a real device

STRUCTURES = """
typedef struct { float x, y; int cell; } particle;
__kernel void bin_particles(__global const particle *p, __global float *mass, int n) {
    int i = get_global_id(0);
    if (i < n) mass[i] = p[i].x + p[i].y * (float)p[i].cell;
}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A few kernels, analysed and timed on a CPU device with all strategies."""
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())
    folder = tmp_path_factory.mktemp("measured")
    (folder / "kernels").mkdir()
    for name in ("vadd", "gather", "csr_spmv"):
        shutil.copy(KERNELS / f"{name}.cl", folder / "kernels")
    (folder / "kernels" / "bin_particles.cl").write_text(STRUCTURES, encoding="utf-8")
    options = (
        "--preset", "demo", "--samples-per-kernel", "4",
        "--strategy", "memory_analysis", "--strategy", "decoupled",
        "--set", "plan.max_work_items=16384", "--set", "timing.sample_budget_ms=5",
        "--set", "timing.spin_up_ms=0",
    )  # fmt: skip
    done = Collect(folder / "kernels", folder / "data", "cpu", options).run_here()
    assert done.returncode == 0, done.stderr
    assert_clean(folder / "data")
    return rows_of(folder / "data")


def test_kernels_are_analysed_and_run_on_a_real_device(
    measured: dict[str, dict[str, Any]],
) -> None:
    assert set(measured) == {"vadd", "gather", "csr_spmv", "bin_particles"}
    for row in measured.values():
        assert row["analysis_failure"] is None
        assert [sample["status"] for sample in row["samples"]] == ["ok"] * 4
        assert "simple" not in {label for one in labels(row) for label in one}


def test_a_guard_decides_what_is_allocated(measured: dict[str, dict[str, Any]]) -> None:
    for name in ("vadd", "bin_particles"):
        assert all(entry["validated"] for entry in measured[name]["analysis"])
        for sample in measured[name]["samples"]:
            *buffers, n = sample["args"]
            wanted = max(1, min(sample["global_size"][0], int(n["value"])))
            assert {buffer["elements"] for buffer in buffers} == {wanted}
            assert sample["checks"]["data_dependent"] is False


def test_indices_and_row_offsets_are_valid(measured: dict[str, dict[str, Any]]) -> None:
    for sample in measured["gather"]["samples"]:
        index, table, *_ = sample["args"]
        assert (index["contents"], index["contents_limit"]) == ("bounded", table["elements"])
        assert sample["checks"]["data_dependent"] is True
    for sample in measured["csr_spmv"]["samples"]:
        offsets, columns, values, x, *_ = sample["args"]
        assert offsets["contents"] == "prefix"
        assert offsets["contents_limit"] == columns["elements"] + 1 == values["elements"] + 1
        assert columns["elements"] > 4 * offsets["elements"]
        assert (columns["contents"], columns["contents_limit"]) == ("bounded", x["elements"])
