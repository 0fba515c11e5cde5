"""Merging: every sample once, the better one kept, and a result that verifies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf.cli.dataset import merge as merge_command
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import manifest_versions
from llmperf_common.store.manifests.run import RUN_FILE, ForeignRunError
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.shard import ShardError
from llmperf_common.store.upkeep.merge import merge, refuse_inside_a_dataset
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_dataset,
    make_device,
    make_failure,
    make_kernel,
    make_timing,
    mixed_outcome,
)
from tests.support.sampling import slow_but_each


def one_family(kernels: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """All kernels are near duplicates."""
    smallest = min((kernel for kernel, _, _ in kernels), default="")
    return {kernel: smallest for kernel, _, _ in kernels}


def merged(sources: Sequence[Path], out: Path):
    report = merge(sources, out, assign_families=one_family)
    verified = verify(out)
    assert verified.problems == ()
    assert verified.notes == ()
    assert verified.counts.pending_tasks == 0
    dataset = open_dataset(out)
    assert dataset.samples().num_rows == report.num_samples == dataset.num_samples
    assert dataset.kernels().num_rows == report.num_tasks
    return report, dataset


def test_different_kernels_of_different_plans(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=[make_kernel(i) for i in range(3)], plan_hash="a" * 20)
    b = make_dataset(
        tmp_path / "b",
        kernels=[make_kernel(i) for i in range(3, 5)],
        plan_hash="b" * 20,
        device=make_device(1, "other"),
        outcome_of=mixed_outcome,
    )
    report, dataset = merged([a, b], tmp_path / "out")
    assert (report.num_samples, report.num_tasks) == (20, 5)
    assert (report.num_dropped_samples, report.num_dropped_tasks) == (0, 0)
    assert dataset.run.merged_from == ("a" * 20, "b" * 20)
    assert [item.name for item in dataset.run.device_classes] == ["replay", "other"]
    assert dataset.devices().num_rows == 2
    assert len(dataset.sentinel()) == 5
    families = dataset.kernels(["family_id", "kernel_id"])
    assert set(families.column("family_id").to_pylist()) == {
        min(families.column("kernel_id").to_pylist())
    }
    assert manifest_versions(PosixFilesystem(tmp_path / "out")) == [1]


def test_ok_goes_before_failed_then_the_first_source(tmp_path):
    a = make_dataset(
        tmp_path / "a",
        kernels=1,
        outcome_of=lambda _, c: make_failure() if c in (1, 2) else make_timing(1e3),
        plan_hash="a" * 20,
    )
    b = make_dataset(
        tmp_path / "b",
        kernels=1,
        outcome_of=lambda _, c: make_failure() if c == 2 else make_timing(2e3),
        plan_hash="b" * 20,
    )
    report, dataset = merged([a, b], tmp_path / "out")
    assert report.num_dropped_samples == 4
    assert report.num_tasks == 2, "both tasks still have a sample"
    rows = dataset.samples(["seed", "median_ns", "status"]).to_pylist()
    found = {row["seed"]: (row["status"], row["median_ns"]) for row in rows}
    assert found == {0: ("ok", 1e3), 1: ("ok", 2e3), 2: ("hang", None), 3: ("ok", 1e3)}


def test_a_task_without_samples_left_is_dropped(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=2, plan_hash="a" * 20)
    b = make_dataset(tmp_path / "b", kernels=4, plan_hash="b" * 20, kernels_per_shard=4)
    report, dataset = merged([a, b], tmp_path / "out")
    assert (report.num_tasks, report.num_dropped_tasks) == (4, 2)
    tasks = set(dataset.samples(["task_id"]).column("task_id").to_pylist())
    assert tasks == set(dataset.kernels(["task_id"]).column("task_id").to_pylist())


def test_the_same_plan_from_two_machines_joins_a_task(tmp_path):
    # The same task on both: its kept samples come from both, and lie in one pair of shards.
    a = make_dataset(
        tmp_path / "a",
        kernels=4,
        outcome_of=lambda k, c: make_failure() if (k + c) % 2 else good_outcome(k, c),
        kernels_per_shard=4,
    )
    b = make_dataset(
        tmp_path / "b",
        kernels=5,
        device=make_device(1),
        outcome_of=good_outcome,
        kernels_per_shard=2,
    )
    report, dataset = merged([a, b], tmp_path / "out")
    assert (report.num_samples, report.num_tasks) == (20, 5)
    assert dataset.status_counts() == {"ok": 20}
    devices = dataset.samples(["device_id"]).column("device_id").to_pylist()
    assert devices.count(make_device(0).device_id) == 8
    assert devices.count(make_device(1).device_id) == 12


def test_a_row_without_ndrange_goes_where_another_source_got_further(tmp_path):
    broken = Failure(code=FailureCode.BUILD_TIMEOUT, stage=Stage.BUILD, detail="slow")
    a = make_dataset(tmp_path / "a", kernels=[make_kernel(0, failure=broken), make_kernel(1)])
    b = make_dataset(tmp_path / "b", kernels=[make_kernel(0), make_kernel(2, failure=broken)])
    report, dataset = merged([a, b], tmp_path / "out")
    assert report.num_tasks == 3
    assert dataset.status_counts() == {"ok": 8, "build_timeout": 1}
    builds = dataset.kernels(["name", "build"]).to_pylist()
    assert {row["name"]: row["build"] is not None for row in builds} == {
        "scale_0": True,
        "scale_1": True,
        "scale_2": False,
    }


def test_merging_twice_or_the_merged_again_changes_nothing(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=3, outcome_of=mixed_outcome, plan_hash="a" * 20)
    b = make_dataset(tmp_path / "b", kernels=2, plan_hash="b" * 20)
    _, once = merged([a, b], tmp_path / "once")
    _, again = merged([tmp_path / "once", a], tmp_path / "again")
    assert again.run.plan_hash == once.run.plan_hash
    assert again.run.merged_from == once.run.merged_from
    assert again.samples().sort_by("sample_id").equals(once.samples().sort_by("sample_id"))


class KilledError(BaseException):
    """In place of SIGKILL."""


@pytest.mark.parametrize("at", slow_but_each(3, ["run.json", "kernels/", "samples/", "manifest-"]))
def test_a_killed_merge_says_so_and_goes_on(tmp_path, monkeypatch, at):
    sources = [
        make_dataset(
            tmp_path / name, kernels=[make_kernel(i) for i in numbers], plan_hash=name * 20
        )
        for name, numbers in (("a", range(3)), ("b", range(2, 6)))
    ]
    _, whole = merged(sources, tmp_path / "whole")
    put = PosixFilesystem.put_if_absent
    out = tmp_path / "out"

    def dying(self, name, data):
        is_new = put(self, name, data)
        if name.startswith(at) and not at.startswith("manifest"):
            raise KilledError
        return is_new

    def refusing(self, name, data):
        if name.startswith(at):
            raise KilledError
        return put(self, name, data)

    monkeypatch.setattr(
        PosixFilesystem, "put_if_absent", refusing if at.startswith("manifest") else dying
    )
    with pytest.raises(KilledError):
        merge(sources, out, assign_families=one_family)
    monkeypatch.undo()

    (problem,) = verify(out).problems
    assert "an unfinished merge" in problem.what
    with pytest.raises(StoreError, match="run the same `llmperf dataset merge` again"):
        open_dataset(out)
    with pytest.raises(ForeignRunError, match="an unfinished merge of other sources"):
        merge(sources[:1], out, assign_families=one_family)
    _, resumed = merged(sources, out)
    assert resumed.samples().equals(whole.samples())
    assert resumed.manifest.shards == whole.manifest.shards


def test_a_killed_merge_of_sources_that_have_changed_is_refused(tmp_path, monkeypatch):
    a = make_dataset(tmp_path / "a", kernels=2, plan_hash="a" * 20)
    b = make_dataset(tmp_path / "b", kernels=[make_kernel(5)], plan_hash="b" * 20)
    put = PosixFilesystem.put_if_absent

    def dying(self, name, data):
        if name.startswith("manifest-"):
            raise KilledError
        return put(self, name, data)

    monkeypatch.setattr(PosixFilesystem, "put_if_absent", dying)
    with pytest.raises(KilledError):
        merge([a, b], tmp_path / "out", assign_families=one_family)
    monkeypatch.undo()
    changed = make_dataset(
        tmp_path / "c",
        kernels=[make_kernel(5)],
        plan_hash="b" * 20,
        outcome_of=lambda _, c: make_timing(1e6 + c),
    )
    with pytest.raises(ForeignRunError, match="before they changed"):
        merge([a, changed], tmp_path / "out", assign_families=one_family)


def test_nothing_at_all_merges(tmp_path):
    empty = make_dataset(tmp_path / "a", kernels=0)
    report, _ = merged([empty, empty], tmp_path / "out")
    assert (report.num_samples, report.num_tasks) == (0, 0)


def test_a_folder_in_use_is_refused_and_untouched(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=1)
    for name in ("thesis.tex", RUN_FILE, "samples/x.parquet", ".hidden"):
        out = tmp_path / f"out-{name[:3]}"
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        with pytest.raises(ForeignRunError, match="choose a new or empty folder"):
            merge([a], out, assign_families=one_family)
        assert (out / name).read_text() == "mine"
        assert not list(out.glob("manifest*"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose a folder"):
        merge([a], tmp_path / "file", assign_families=one_family)


@pytest.mark.parametrize("place", ["a/sub", "a/sub/deeper", "other/sub", "link"])
def test_a_folder_inside_a_dataset_is_refused_and_not_made(tmp_path, place):
    a = make_dataset(tmp_path / "a", kernels=1)
    make_dataset(tmp_path / "other", kernels=1)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "sub")
    with pytest.raises(ForeignRunError, match="is inside the dataset") as refused:
        merge([a], tmp_path / place, assign_families=one_family)
    assert refused.value.exit_code == 2
    assert not (tmp_path / place).exists()


@pytest.mark.parametrize(
    "content", ['{"lr": 0.1}', "[]", "not JSON", '{"schema_version": 1, "plan_hash": "p"}']
)
def test_a_folder_below_the_run_of_another_tool_is_allowed(tmp_path, content):
    a = make_dataset(tmp_path / "a", kernels=1)
    (tmp_path / RUN_FILE).write_text(content)
    merge([a], tmp_path / "out" / "merged", assign_families=one_family)
    assert open_dataset(tmp_path / "out" / "merged").num_tasks == 1


@pytest.mark.parametrize("content", ['{"schema_version": 1000000}', "damaged"])
def test_a_folder_inside_a_dataset_that_cannot_be_read_is_refused(tmp_path, content):
    a, other = (make_dataset(tmp_path / name, kernels=1) for name in ("a", "other"))
    (other / RUN_FILE).write_text(content)
    with pytest.raises(ForeignRunError, match="is inside the dataset"):
        merge([a], other / "sub", assign_families=one_family)


def test_a_prefix_inside_a_source_is_refused(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=1)
    for out in ("s3://b/d1/sub", "s3://b/d1/"):
        with pytest.raises(ForeignRunError, match="inside the dataset s3://b/d1:"):
            refuse_inside_a_dataset([a, "s3://b/d1/"], out + "x")
    refuse_inside_a_dataset([a, "s3://b/d1"], "s3://b/d1")  # is refused as not empty
    refuse_inside_a_dataset([a, "s3://b/d1"], "s3://b/d12")


def test_another_harness_version_is_refused(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=1)
    b = make_dataset(tmp_path / "b", kernels=1)
    run = replace(open_dataset(b).run, harness_version=1)
    (b / RUN_FILE).write_bytes(run.to_json())
    with pytest.raises(
        StoreError, match=r"/b was measured by version 1 .*/a by version 2.*the lower version"
    ):
        merge([a, b], tmp_path / "out", assign_families=one_family)
    assert not (tmp_path / "out").exists()
    with pytest.raises(StoreError, match="nothing to merge"):
        merge([], tmp_path / "out", assign_families=one_family)


def test_a_damaged_source_leaves_no_dataset(tmp_path):
    a = make_dataset(tmp_path / "a", kernels=2)
    next((a / "kernels").iterdir()).write_bytes(b"")
    with pytest.raises(ShardError, match=r"kernels/.* is damaged"):
        merge([a], tmp_path / "out", assign_families=one_family)
    with pytest.raises(StoreError):
        open_dataset(tmp_path / "out")


OUTCOMES = st.lists(
    st.lists(st.sampled_from("of-"), min_size=3, max_size=3), min_size=1, max_size=3
)
"""A source: for each kernel, whether each of its configs is ok or failed; all '-' leaves it out."""


@settings(max_examples=8, deadline=None)
@given(sources=st.lists(OUTCOMES, min_size=1, max_size=3), same_plan=st.booleans())
def test_merging_any_sources_keeps_the_best_of_each_sample(sources, same_plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merge")
    best: dict[tuple[int, int], tuple[bool, int]] = {}
    paths = []
    for number, kernels in enumerate(sources):
        for kernel, letters in enumerate(kernels):
            for config, letter in enumerate(letters):
                rank = (letter != "o", number)
                best[kernel, config] = min(best.get((kernel, config), rank), rank)

        def outcome(kernel: int, config: int, kernels=kernels, number=number):
            is_ok = kernels[kernel][config] == "o"
            return make_timing(1e3 * (1 + number)) if is_ok else make_failure()

        paths.append(
            make_dataset(
                folder / str(number),
                kernels=len(kernels),
                num_configs=3,
                outcome_of=outcome,
                plan_hash=("p" if same_plan else str(number)) * 20,
            )
        )
    _, dataset = merged(paths, folder / "out")
    names = {row["kernel_id"]: row["name"] for row in dataset.kernels().to_pylist()}
    found = {
        (int(names[row["kernel_id"]].removeprefix("scale_")), row["seed"]): row
        for row in dataset.samples().to_pylist()
    }
    assert set(found) == set(best)
    for key, (is_failed, number) in best.items():
        assert (found[key]["status"] != "ok") == is_failed
        assert found[key]["median_ns"] == (None if is_failed else 1e3 * (1 + number))


def test_the_best_peak_of_each_is_kept_and_differences_are_reported(tmp_path):
    busy = replace(
        make_device(),
        peak_dram_gbps=100.0, peak_dram_spread=0.3,
        peak_l2_gbps=76.0, peak_l2_spread=0.5,
        peak_fp32_gflops=231.0, peak_fp32_spread=0.01,
    )  # fmt: skip
    quiet = replace(
        make_device(),
        peak_dram_gbps=95.0, peak_dram_spread=0.02,
        peak_l2_gbps=151.0, peak_l2_spread=0.03,
        peak_fp64_gflops=65.0,
    )  # fmt: skip
    a = make_dataset(tmp_path / "a", kernels=1, device=busy, plan_hash="a" * 20)
    b = make_dataset(tmp_path / "b", kernels=2, device=quiet, plan_hash="b" * 20)
    report, dataset = merged([a, b], tmp_path / "out")
    (kept,) = dataset.devices().to_pylist()
    assert (kept["peak_dram_gbps"], kept["peak_dram_spread"]) == (100.0, 0.3)
    assert (kept["peak_l2_gbps"], kept["peak_l2_spread"]) == (151.0, 0.03)
    assert (kept["peak_fp32_gflops"], kept["peak_fp32_spread"]) == (231.0, 0.01)
    assert kept["peak_fp64_gflops"] == 65.0, "one source had not measured it"
    (difference,) = report.peak_differences
    assert (difference.column, difference.lowest, difference.best) == ("peak_l2_gbps", 76.0, 151.0)
    swapped, again = merged([b, a], tmp_path / "swapped")
    assert again.devices().to_pylist() == [kept]
    assert swapped.peak_differences == report.peak_differences


def test_the_command_names_the_peaks_that_differ(tmp_path, capsys):
    slow, fast = (replace(make_device(), peak_dram_gbps=peak) for peak in (24.0, 46.0))
    a = make_dataset(tmp_path / "a", kernels=1, device=slow, plan_hash="a" * 20)
    b = make_dataset(tmp_path / "b", kernels=2, device=fast, plan_hash="b" * 20)
    merge_command([str(a), str(b)], str(tmp_path / "out"))
    told = capsys.readouterr().err
    device = make_device().device_id
    assert (
        f"device Replay ({device}): peak_dram_gbps is 24 to 46 in the sources (48 % apart); the best is kept"
        in told
    )
    assert "peak_differences" not in told
