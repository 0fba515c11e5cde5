"""Verification: a sound dataset has no problem, each kind of damage has its own."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmperf_common import ids
from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import (
    ArgumentKind,
    LaunchArgument,
    LaunchConfig,
    Strategy,
    launch_argument_json,
)
from llmperf_common.schemas import SAMPLES
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest, manifest_name
from llmperf_common.store.manifests.run import RUN_LOCK
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.rows import samples_table
from llmperf_common.store.tables.shard import Footer, decode, encode_table
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.row_checks import Surroundings, check_samples, sample_ids_of
from llmperf_common.store.upkeep.verify import VerifyReport, verify
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_dataset,
    make_kernel,
    make_result,
    make_timing,
    mixed_outcome,
    write_pair,
)

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four kernels in one pair of shards, published at once; one failed before it had a config."""
    unreadable = Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail="an image")
    kernels = [*(make_kernel(i) for i in range(3)), make_kernel(3, failure=unreadable)]
    folder = tmp_path_factory.mktemp("template")
    return make_dataset(folder, kernels=kernels, outcome_of=mixed_outcome, kernels_per_shard=9)


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A copy of the template to damage (writing one anew waits for the disk)."""
    return shutil.copytree(template, tmp_path / "data")


def rewrite(
    path: Path,
    table: str,
    change: Change,
    footer: Callable[[Footer], Footer] = lambda f: f,
    *,
    number: int = 0,
):
    """Change a shard and list it as it now is, as a writer with a bug would have."""
    fs = PosixFilesystem(path)
    manifest = latest_manifest(fs)
    entry = manifest.of_table(table)[number]
    rows, old = decode(fs.read_bytes(entry.name), entry.name)
    new = footer(old)
    rows = change(rows)
    data = encode_table(rows, new)
    (path / entry.name).write_bytes(data)
    listed = ShardEntry.of(entry.name, data, rows=rows.num_rows, tasks=entry.tasks)
    shards = tuple(listed if e.name == entry.name else e for e in manifest.shards)
    text = replace(manifest, shards=shards).to_json()
    (path / manifest_name(manifest.version)).write_bytes(text)


def with_value(column: str, row: int, value: object) -> Change:
    """Set one cell."""

    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        values = table.column(column).to_pylist()
        values[row] = value
        field = table.schema.field(index)
        return table.set_column(index, field, pa.array(values, field.type))

    return change


def kinds(report: VerifyReport) -> set[ProblemKind]:
    return {problem.kind for problem in report.problems}


def the_problem(report: VerifyReport) -> str:
    (problem,) = report.problems
    return str(problem)


def test_a_sound_dataset_has_no_problem(path):
    report = verify(path)
    assert report.problems == report.notes == ()
    assert report.clean
    assert report.version == 2
    assert report.counts.tasks == report.counts.planned_tasks == 4
    assert report.counts.pending_tasks == 0
    assert (report.counts.samples, report.counts.ok) == (13, 8)
    assert report.counts.failed == {"over_time_budget": 3, "hang": 1, "unsupported": 1}


def test_several_shards_and_pending_tasks(tmp_path):
    report = verify(make_dataset(tmp_path, kernels=5, num_planned_tasks=8))
    assert report.clean
    assert (report.counts.tasks, report.counts.pending_tasks) == (5, 3)


def test_without_a_manifest_it_is_not_clean_unless_a_collector_is_at_its_first(tmp_path):
    make_dataset(tmp_path, kernels=0, num_planned_tasks=2)
    assert verify(tmp_path).problems == ()
    for manifest in tmp_path.glob("manifest-*"):
        manifest.unlink()
    (problem,) = verify(tmp_path).problems
    assert problem.kind is ProblemKind.MANIFEST
    assert "no manifest" in problem.what
    with PosixFilesystem(tmp_path).lock(RUN_LOCK, exclusive=False, wait=False):
        report = verify(tmp_path)
    assert report.problems == ()
    assert [note.what for note in report.notes] == ["no results are published yet"]


def test_no_run_is_a_problem_and_nothing_is_created(tmp_path):
    report = verify(tmp_path / "nowhere")
    assert "it is not a dataset" in the_problem(report)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "run.json").write_text("{")
    assert kinds(verify(tmp_path)) == {ProblemKind.RUN}


SAMPLE_CHANGES = [
    ("status", 0, "fine", ProblemKind.STATUS, "neither 'ok' nor a failure code"),
    ("median_ns", 0, None, ProblemKind.TIME, "'ok' but a time is null"),
    ("cold_ns", 0, None, ProblemKind.TIME, "'ok' but a time is null"),
    ("median_ns", 2, 5.0, ProblemKind.TIME, "failed but has a time"),
    ("first_ns", 0, 0.0, ProblemKind.TIME, "not a positive number"),
    ("cold_ns", 0, [1.0, -1.0], ProblemKind.TIME, "not a positive number"),
    ("first_ns", 0, float("nan"), ProblemKind.TIME, "not a positive number"),
    ("median_ns", 0, 999.9, ProblemKind.TIME, "a statistic does not follow"),
    ("min_ns", 1, 1.0, ProblemKind.TIME, "a statistic does not follow"),
    ("mean_ns", 1, 1.0, ProblemKind.TIME, "a statistic does not follow"),
    ("iqr_ns", 1, 1.0, ProblemKind.TIME, "a statistic does not follow"),
    ("sample_id", 0, "0" * 20, ProblemKind.ID, "does not match the row"),
    ("global_size", 0, [65], ProblemKind.ID, "does not match the row"),
    ("harness_version", 0, 1, ProblemKind.REFERENCE, "harness_version is not 2"),
    ("device_id", 0, "f" * 20, ProblemKind.REFERENCE, "not in devices"),
]


@pytest.mark.parametrize(("column", "row", "value", "kind", "words"), SAMPLE_CHANGES)
def test_a_wrong_cell_is_found(path, column, row, value, kind, words):
    rewrite(path, "samples", with_value(column, row, value))
    found = [p for p in verify(path).problems if p.kind is kind and words in p.what]
    assert len(found) == 1, verify(path).problems
    assert found[0].name == "samples/e000001-000000.parquet"


def test_a_repeated_sample_and_a_sample_with_bad_id_are_found(path):
    rewrite(path, "samples", lambda t: pa.concat_tables([t, t.slice(0, 1)]))
    assert "more than one row" in the_problem(verify(path))
    rewrite(path, "samples", with_value("sample_id", 0, "short"))
    assert any("20 hex digits" in p.what for p in verify(path).problems)


def test_a_second_row_beside_an_empty_one_is_found(path):
    rows = open_dataset(path).samples().column("status").to_pylist()
    failed = next(number for number, status in enumerate(rows) if status != "ok")
    sizes = [with_value(name, failed, []) for name in ("global_size", "local_size")]
    rewrite(path, "samples", lambda table: sizes[1](sizes[0](table)))
    found = {p.what for p in verify(path).problems}
    assert any("other rows beside the row without NDRange" in what for what in found)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("source", "__kernel void other() {}", "source_sha256 does not match"),
        ("name", "other", "does not match name, source and build options"),
        ("source_sha256", "0" * 64, "source_sha256 does not match"),
    ],
)
def test_a_wrong_kernels_row_is_found(path, column, value, words):
    rewrite(path, "kernels", with_value(column, 0, value))
    report = verify(path)
    assert kinds(report) == {ProblemKind.ID}
    assert any(words in problem.what for problem in report.problems)


@pytest.mark.parametrize("source", [None, ""])
def test_a_kernel_without_source_keeps_its_id(path, source):
    rewrite(path, "kernels", with_value("source", 0, source))
    assert verify(path).clean


def test_a_wrong_task_is_found_wherever_it_shows(path):
    rewrite(path, "kernels", with_value("task_id", 0, "0" * 20))
    found = {problem.kind for problem in verify(path).problems}
    assert found == {ProblemKind.ID, ProblemKind.FOOTER, ProblemKind.REFERENCE}


def test_a_footer_that_tells_another_story_is_found(path):
    rewrite(path, "samples", lambda t: t, lambda f: replace(f, tasks=f.tasks[:-1]))
    assert kinds(verify(path)) == {ProblemKind.FOOTER, ProblemKind.PAIR}
    rewrite(path, "samples", lambda t: t, lambda f: replace(f, plan_hash="q", epoch=9))
    assert any("plan q, epoch 9" in problem.what for problem in verify(path).problems)


def test_the_same_task_in_two_shards_is_found(tmp_path):
    make_dataset(tmp_path, kernels=1)
    fs = PosixFilesystem(tmp_path)
    pair = write_pair(fs, "again", [make_result(make_kernel(0), [good_outcome(0, 0)])])
    new = latest_manifest(fs).with_shards(pair, epoch=1)
    fs.put_if_absent(manifest_name(new.version), new.to_json())
    report = verify(tmp_path)
    assert kinds(report) == {ProblemKind.TWICE}
    assert {problem.name for problem in report.problems} == {"kernels", "samples"}


def test_missing_damaged_and_cut_shards_are_all_reported(tmp_path):
    make_dataset(tmp_path, kernels=6, kernels_per_shard=2)
    first, second, third = sorted((tmp_path / "samples").iterdir())
    first.unlink()
    second.write_bytes(second.read_bytes()[:-20])
    data = bytearray(third.read_bytes())
    data[-9] ^= 1  # in the footer's key-value metadata or near it
    third.write_bytes(data)
    report = verify(tmp_path)
    assert {p.name for p in report.problems} == {
        f"samples/{p.name}" for p in (first, second, third)
    }
    assert {ProblemKind.MISSING, ProblemKind.BYTES, ProblemKind.DAMAGED} <= kinds(report)
    assert report.counts.tasks == 6


def test_a_pair_without_its_half_is_found(path):
    fs = PosixFilesystem(path)
    manifest = latest_manifest(fs)
    shards = tuple(entry for entry in manifest.shards if entry.table != "samples")
    text = replace(manifest, shards=shards).to_json()
    (path / manifest_name(manifest.version)).write_bytes(text)
    assert kinds(verify(path)) == {ProblemKind.PAIR, ProblemKind.ORPHAN}


def test_a_missing_device_shard_is_one_problem(path):
    next((path / "devices").iterdir()).unlink()
    assert kinds(verify(path)) == {ProblemKind.MISSING}


def edit_manifest(path: Path, version: int, **changes: object) -> None:
    file = path / manifest_name(version)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_broken_chains_are_found(tmp_path):
    make_dataset(tmp_path, kernels=6, kernels_per_shard=2)
    name = manifest_name(3)
    whole = (tmp_path / name).read_text()
    edit_manifest(tmp_path, 3, epoch=7)
    assert f"{manifest_name(4)}: its epoch 1 is below epoch 7" in the_problem(verify(tmp_path))
    (tmp_path / name).write_text(whole.replace('"version": 3', '"version": 5'))
    assert "says that it is version 5" in the_problem(verify(tmp_path))
    (tmp_path / name).write_text(whole)
    edit_manifest(tmp_path, 3, plan_hash="q")
    assert "is of plan q" in the_problem(verify(tmp_path))
    edit_manifest(tmp_path, 3, plan_hash=json.loads(whole)["plan_hash"], shards=[])
    assert "now neither listed nor replaced" in the_problem(verify(tmp_path))
    (tmp_path / name).write_text("{")
    assert "is damaged" in the_problem(verify(tmp_path))
    (tmp_path / name).unlink()
    assert f"{name}: is missing" in the_problem(verify(tmp_path))
    (tmp_path / name).write_text(whole)
    assert verify(tmp_path).clean


def test_orphans_are_problems_unless_a_collector_runs(path):
    fs = PosixFilesystem(path)
    write_pair(fs, "orphan", [make_result(make_kernel(9), [good_outcome(0, 0)])])
    (path / "samples" / ".tmp-1-ab").write_bytes(b"half")
    report = verify(path)
    assert kinds(report) == {ProblemKind.ORPHAN}
    assert {p.name for p in report.problems} == {"kernels/orphan.parquet", "samples/orphan.parquet"}
    assert [note.name for note in report.notes] == ["samples/.tmp-1-ab"]
    with fs.lock(RUN_LOCK, exclusive=False, wait=False):
        report = verify(path)
    assert report.clean
    assert len(report.notes) == 3


def test_removed_manifests_of_an_unfinished_run_leave_a_warning(tmp_path):
    make_dataset(tmp_path, kernels=3, num_planned_tasks=8)
    assert verify(tmp_path).notes == ()
    fs = PosixFilesystem(tmp_path)
    write_pair(fs, "later", [make_result(make_kernel(9), [good_outcome(0, 0)])])
    report = verify(tmp_path)
    assert report.clean, "a killed run leaves such shards, too"
    warning, *others = report.notes
    assert "warning: 2 shards are listed by no manifest" in warning.what
    assert warning.name == manifest_name(report.version)
    assert {note.name for note in others} == {"kernels/later.parquet", "samples/later.parquet"}
    with fs.lock(RUN_LOCK, exclusive=False, wait=False):
        assert len(verify(tmp_path).notes) == 2, "the collector will list them"


def test_compacted_shards_left_for_readers_are_notes(tmp_path):
    make_dataset(tmp_path, kernels=1)
    fs = PosixFilesystem(tmp_path)
    manifest = latest_manifest(fs)
    old = [entry for entry in manifest.shards if entry.table != "devices"]
    devices = manifest.of_table("devices")
    new = []
    for entry in old:
        name = f"{entry.table}/compacted.parquet"
        data = fs.read_bytes(entry.name)
        fs.put_if_absent(name, data)
        new.append(ShardEntry.of(name, data, rows=entry.rows, tasks=entry.tasks))
    compacted = replace(
        manifest,
        version=manifest.version + 1,
        shards=(*devices, *new),
        replaces=tuple((n.name, (o.name,)) for n, o in zip(new, old, strict=True)),
    )
    fs.put_if_absent(manifest_name(compacted.version), compacted.to_json())
    report = verify(tmp_path)
    assert report.clean, report.problems
    assert {note.name for note in report.notes} == {entry.name for entry in old}


def test_more_results_than_planned_are_found(tmp_path):
    make_dataset(tmp_path, kernels=3, num_planned_tasks=2)
    assert "plans 2 tasks, but 3 have results" in the_problem(verify(tmp_path))


def test_a_later_shard_may_lack_nullable_columns(path):
    rewrite(path, "samples", lambda t: t.drop_columns(["checks", "throttled"]))
    assert verify(path).clean
    rewrite(path, "samples", lambda t: t.drop_columns(["seed"]))
    assert "'seed' is missing" in the_problem(verify(path))


def test_chunks_and_slices_do_not_shift_rows(path):
    fs = PosixFilesystem(path)
    entry = latest_manifest(fs).of_table("samples")[0]
    table, _ = decode(fs.read_bytes(entry.name), entry.name)
    parts = pa.concat_tables([table.slice(5), table.slice(0, 5)])
    assert sample_ids_of(parts.combine_chunks()) == parts.column("sample_id").to_pylist()
    assert (
        sample_ids_of(parts.slice(3, 4).combine_chunks())
        == sample_ids_of(table.combine_chunks())[8:12]
    )
    rewrite(path, "samples", lambda t: t.take(pc.sort_indices(t.column("median_ns"))))
    assert verify(path).clean


SIZES = st.lists(st.integers(1, 2**40), min_size=0, max_size=3).map(tuple)
VALUES = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
ARGUMENTS = st.lists(
    st.one_of(
        st.builds(
            LaunchArgument,
            position=st.integers(0, 9),
            kind=st.just(ArgumentKind.GLOBAL_BUFFER),
            elements=st.integers(0, 2**40),
            contents=st.none()
            | st.builds(Contents, rule=st.sampled_from(ContentsRule), limit=st.integers(1, 2**32)),
        ),
        st.builds(
            LaunchArgument,
            position=st.integers(0, 9),
            kind=st.just(ArgumentKind.SCALAR),
            value=VALUES,
        ),
    ),
    max_size=4,
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(configs=st.lists(st.tuples(SIZES, SIZES, ARGUMENTS), min_size=1, max_size=4))
def test_ids_from_rows_are_those_of_the_configs(configs):
    kernel = make_kernel()
    wanted = [
        LaunchConfig(
            sample_id=ids.sample_id(
                kernel_id=kernel.kernel_id,
                global_size=global_size,
                local_size=local_size,
                args=[launch_argument_json(argument) for argument in args],
                device_class="replay",
            ),
            global_size=global_size,
            local_size=local_size,
            args=args,
            regime=None,
            strategies=(Strategy.SIMPLE,),
            seed=0,
        )
        for global_size, local_size, args in configs
    ]
    result = make_result(kernel, [good_outcome(0, 0)] * len(wanted))
    samples = tuple(
        replace(sample, config=config)
        for sample, config in zip(result.samples, wanted, strict=True)
    )
    table = samples_table([replace(result, samples=samples)])
    assert table.schema.equals(SAMPLES)
    assert sample_ids_of(table) == [config.sample_id for config in wanted]


@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=12))
@example(times=[1.0, 1.0, 68719476738.0, 1.1])
def test_statistics_of_any_readings_pass(times):
    result = make_result(make_kernel(), [replace(make_timing(), time_ns=tuple(times))])
    around = Surroundings(tasks=None, devices=None, harness_version=None)
    assert check_samples(samples_table([result]), "samples/a.parquet", around) == []
