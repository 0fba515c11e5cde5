"""benchmarks/collectors: every part gives rows of the same launch configs, and none can take the others down.

The whole run is on a CPU device, and on a GPU where there is one (``-m gpu``); part b only where kernel_tuner is.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.collecting.collectors.agreement import agreements
from benchmarks.collecting.collectors.comparison import Comparison, Limits, Settings
from benchmarks.collecting.collectors.host_inputs import host_bytes
from benchmarks.collecting.collectors.jobs import (
    GUARD_BYTES,
    Job,
    Work,
    launch_from_row,
    read_work,
    write_work,
)
from benchmarks.collecting.collectors.log import read_log, rows_of
from benchmarks.collecting.collectors.rates import Stretch, TimedRow, class_rates, shares_s
from benchmarks.collecting.collectors.slicing import draw, left_out, was_launched
from benchmarks.collecting.collectors.supervise import PartRun, run_each, run_until_done
from benchmarks.collecting.collectors.tuner import arguments_of, unsupported
from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.ids import sample_id
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    LaunchArgument,
    LaunchConfig,
    Leaf,
    launch_argument_json,
)
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import descendants, is_running, wait_until
from tests.support.reading import kernels_from_source
from tests.support.sampling import NIGHTLY
from workers.corpus.files import CorpusError
from workers.corpus.read import Corpus, read_corpus, read_sources, write_corpus
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.measure.run_order import OUT_OF_BUDGET
from workers.plan.inputs import SCALAR_TYPES, reference_bytes

SOURCES = {
    "scaled": "__kernel void scaled(__global const float *a, __global float *b, float f) { int i = get_global_id(0); b[i] = f * a[i]; }",
    "summed": "__kernel void summed(__global float *a, __global const int *b, __local float *t) { int i = get_global_id(0); t[get_local_id(0)] = b[i]; a[i] += t[get_local_id(0)]; }",
    "wild": "__kernel void wild(__global int *x) { x[get_global_id(0) + (1L << 40)] = 1; }",
    "picture": "__kernel void picture(read_only image2d_t t, __global float *x) { x[0] = 1; }",
}  # fmt: skip
QUICK = (
    "--set", 'plan.strategies=["simple"]',
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.sample_budget_ms=20",
    "--set", "plan.max_work_items=65536",
    "--set", "store.commit_interval_s=0.2",
)  # fmt: skip


def _argument(scalar_type: str, **changes: Any) -> Argument:
    plain = Argument(
        position=3, name="x", kind=ArgumentKind.GLOBAL_BUFFER, type_name=scalar_type, scalar_type=scalar_type,
        vector_width=1, element_bytes=SCALAR_TYPES[scalar_type].dtype.itemsize, access=Access.READ,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def _given(elements: int, contents: Contents | None = None) -> LaunchArgument:
    kind = ArgumentKind.GLOBAL_BUFFER
    return LaunchArgument(position=3, kind=kind, elements=elements, contents=contents)


def _job(name: str, **changes: Any) -> Job:
    launch = LaunchConfig(
        sample_id=name, global_size=(64,), local_size=(32,), args=(), regime=None, strategies=(), seed=1
    )  # fmt: skip
    plain = Job(
        kernel_id=name, name=name, source="", build_options="", arguments=(), launches=(launch,)
    )
    return dataclasses.replace(plain, **changes)


def _work(*jobs: Job) -> Work:
    return Work(device_ref={}, timing={}, timer_step_ns=None, last_level_cache_bytes=0, jobs=jobs)


# -- inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scalar_type", sorted(SCALAR_TYPES))
@pytest.mark.parametrize(
    "contents",
    [None, *(Contents(rule=rule, limit=1000) for rule in ContentsRule)],
    ids=["plain", *(rule.value for rule in ContentsRule)],
)
@pytest.mark.parametrize("elements", [0, 1, 2**17 + 77])
def test_numpy_inputs_are_ours(scalar_type: str, contents: Contents | None, elements: int) -> None:
    argument = _argument(scalar_type)
    made = host_bytes(argument, _given(elements, contents), seed=2**40 + 5)
    wanted = reference_bytes(argument, elements=elements, seed=2**40 + 5, contents=contents)
    assert len(made) == len(wanted) + GUARD_BYTES
    assert np.array_equal(made[: len(wanted)], wanted)
    assert not made[len(wanted) :].any()


def test_numpy_inputs_of_structures_and_constant_memory() -> None:
    leaves = (Leaf(offset_bytes=0, scalar_type="int", count=1), Leaf(offset_bytes=4, scalar_type="float", count=2))  # fmt: skip
    argument = _argument("int", element_bytes=12, leaves=leaves)
    wanted = reference_bytes(argument, elements=50, seed=3)
    assert np.array_equal(host_bytes(argument, _given(50), seed=3)[:600], wanted)
    constant = _argument("float", kind=ArgumentKind.CONSTANT_BUFFER)
    assert host_bytes(constant, _given(16), seed=3).nbytes == 64  # there may be no room for more


# -- rates -------------------------------------------------------------------------------------------


def test_shares_add_up_and_what_is_between_kernels_is_shared_by_a_kernel() -> None:
    def row(kernel: str, sample: str, end_s: float) -> TimedRow:
        return TimedRow(kernel_id=kernel, sample_id=sample, end_s=end_s)

    stretch = Stretch(
        start_s=10.0,
        rows=(row("k", "a", 13.0), row("k", "b", 14.0), row("k", "c", 14.5), row("l", "d", 16.5)),
    )
    shares = shares_s([stretch])
    assert shares == {"a": 0.75, "b": 1.75, "c": 1.25, "d": 2.75}, (
        "what is done once belongs to all parts"
    )
    assert sum(shares.values()) == stretch.seconds == 6.5
    medians = {"a": 5e3, "b": 99_999.0, "c": 1e5, "d": 5e3}
    kernels = {"a": "k", "b": "k", "c": "k", "d": "l"}
    common, short, long = class_rates("ours", shares, medians, kernels, common=["a", "b", "c"])
    assert (common.ok, common.kernels, common.work_s) == (3, 1, 3.75)
    assert (short.ok, short.ok_per_work_s) == (2, pytest.approx(2 / 2.5))
    assert (long.ok, long.work_s) == (1, 1.25)


def test_agreement_by_class_of_our_median() -> None:
    ours = {"a": 5e3, "b": 2e4, "c": 4e4, "only": 1.0}
    other = {"a": 1e4, "b": 2.2e4, "c": 3.6e4, "else": 1.0}
    rows = {one.subset: one for one in agreements("p", ours, other, refilled=frozenset({"c"}))}
    assert rows["all"].num_configs == 3
    assert rows["from 10 us"].mape_percent == pytest.approx(10.0)
    assert rows["from 10 us"].signed_percent == pytest.approx(100 * ((1.1 * 0.9) ** 0.5 - 1))
    assert rows["from 10 us, not refilled"].num_configs == 1
    assert rows["below 10 us"].median_ape_percent == pytest.approx(100.0)
    assert "1-10 ms" not in rows


# -- processes ---------------------------------------------------------------------------------------


def test_a_death_and_a_hang_cost_the_item_in_hand_only(tmp_path: Path) -> None:
    work = _work(*(_job(name) for name in ("good", "dies", "fine", "hangs", "last")))
    run = run_until_done(
        "tests.support.processes.stub_part",
        work,
        tmp_path,
        environment=os.environ,
        max_s=60,
        silence_s=3,
    )
    assert (run.deaths, run.hangs, run.is_cut, run.problem) == (2, 1, False, "")
    done = [row["kernel_id"] for row in rows_of(read_log(tmp_path / "log.jsonl"))]
    assert done == ["good", "fine", "last"]


def test_time_is_up_and_what_is_done_is_kept(tmp_path: Path) -> None:
    work = _work(_job("good"), _job("hangs"), _job("last"))
    run = run_until_done(
        "tests.support.processes.stub_part",
        work,
        tmp_path,
        environment=os.environ,
        max_s=3,
        silence_s=60,
    )
    assert run.is_cut
    assert 3 <= run.wall_s < 20
    assert [row["kernel_id"] for row in rows_of(read_log(tmp_path / "log.jsonl"))] == ["good"]


def test_a_part_that_never_starts_says_why(tmp_path: Path) -> None:
    run = run_until_done(
        "tests.support.processes.stub_part",
        _work(_job("no_start")),
        tmp_path,
        environment=os.environ,
        max_s=60,
        silence_s=30,
    )
    assert "nothing to run on" in run.problem


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    write_work(tmp_path / "given.json", _work(_job("hangs")))
    script = f"""
import os
from pathlib import Path
from benchmarks.collecting.collectors.jobs import read_work
from benchmarks.collecting.collectors.supervise import run_until_done
folder = Path({str(tmp_path)!r})
run_until_done("tests.support.processes.stub_part", read_work(folder / "given.json"), folder,
               environment=os.environ, max_s=60, silence_s=60)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_until((tmp_path / "log.jsonl").exists)
        (child,) = descendants(process.pid)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not is_running(child))


@pytest.mark.opencl
def test_a_fresh_process_that_fails_is_a_row(tmp_path: Path) -> None:
    ref = choose("cpu")
    assert not isinstance(ref, NoDevice), ref
    bad = _job("bad", source="__kernel void bad(")
    good = _job("good", source=r'__kernel void good() { printf("{\n"); }')
    run = run_each(
        "benchmarks.collecting.collectors.fresh_process",
        dataclasses.replace(_work(bad, good), device_ref=dataclasses.asdict(ref)),
        tmp_path,
        environment={**os.environ, **ref.environment},
        max_s=60,
        each_s=60,
    )
    first, second = rows_of(read_log(tmp_path / "log.jsonl"))
    assert (run.deaths, first["status"], second["status"]) == (1, "died", "ok")
    assert (second["num_readings"], second["wall_s"] > 0) == (5, True)


def _launch(name: str, local_size: int, *args: LaunchArgument) -> LaunchConfig:
    plain = _job(name).launches[0]
    return dataclasses.replace(plain, global_size=(256,), local_size=(local_size,), args=args)


@pytest.mark.opencl
def test_the_plain_loop_times_a_real_kernel_and_goes_on_behind_what_cannot_run(
    tmp_path: Path,
) -> None:
    ref = choose("cpu")
    assert not isinstance(ref, NoDevice), ref
    (kernel,) = kernels_from_source(SOURCES["summed"])
    assert kernel.signature is not None
    a, b, t = (
        LaunchArgument(position=one.position, kind=one.kind, elements=256)
        for one in kernel.signature.arguments
    )
    job = _job(
        "summed",
        source=kernel.source,
        arguments=kernel.signature.arguments,
        launches=(
            _launch("first", 32, a, b, t),
            _launch("too large", 2**20, a, b, t),
            _launch("last", 64, a, b, t),
        ),
    )
    assert job.needs_refill
    work = Work(
        device_ref=dataclasses.asdict(ref),
        timing={"sample_budget_ms": 20, "max_readings": 9},
        timer_step_ns=1.0,
        last_level_cache_bytes=2**20,
        jobs=(_job("bad", source="__kernel void bad("), job),
    )
    run = run_until_done(
        "benchmarks.collecting.collectors.plain_loop",
        work,
        tmp_path,
        environment={**os.environ, **ref.environment},
        max_s=90,
        silence_s=60,
    )
    assert (run.deaths, run.problem) == (0, "")
    rows = rows_of(read_log(tmp_path / "log.jsonl"))
    statuses = {row["sample_id"]: row["status"] for row in rows}
    assert statuses == {"bad": "build_error", "first": "ok", "too large": "launch_error", "last": "ok"}  # fmt: skip
    timed = [row for row in rows if row["status"] == "ok"]
    for row in timed:
        assert 5 <= row["num_readings"] <= 9
        assert len(row["cold_ns"]) == 3
        assert 0 < row["min_ns"] <= row["median_ns"]
        assert row["launches_per_reading"] == 1  # it reads what it writes


# -- the slice ---------------------------------------------------------------------------------------


def test_the_draw_is_seeded_and_of_kernels_that_can_run() -> None:
    names = [f"k{number}" for number in range(8)]
    texts = [SOURCES["scaled"].replace("scaled", name) for name in names] + [SOURCES["picture"]]
    kernels = tuple(sorted(kernels_from_source("\n".join(texts)), key=lambda one: one.kernel_id))
    corpus = Corpus(kernels=kernels, sha256="")
    drawn = draw(corpus, 3, seed=1)
    assert drawn == draw(corpus, 3, seed=1)
    assert drawn != draw(corpus, 3, seed=2)
    assert [one.name for one in draw(corpus, 0, seed=1).kernels if one.name == "picture"] == []
    assert len(draw(corpus, 0, seed=1).kernels) == 8


def test_who_is_left_out() -> None:
    texts = "\n".join(SOURCES["scaled"].replace("scaled", name) for name in "vwxyz")
    kernels = kernels_from_source(texts)
    corpus = Corpus(kernels=kernels, sha256="")
    statuses = {"v": ["ok", "launch_error"], "w": ["ok", "hang", "quarantined"], "x": ["build_error"], "y": ["ok"]}  # fmt: skip
    ids = {one.name: one.kernel_id for one in kernels}
    rows = [
        {"kernel_id": ids[name], "status": status} for name, all_ in statuses.items() for status in all_
    ]  # fmt: skip
    names = {one.kernel_id: one.name for one in kernels}
    found = {names[one.kernel_id]: one.reason for one in left_out(corpus, rows)}
    assert found == {"w": "hang", "x": "no_ok_sample", "z": "not_reached"}


# -- kernel_tuner's arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "detail", "is_launched"),
    [
        ("ok", None, True),
        ("over_time_budget", "launch: a warm-up took 60.000 ms, timing.max_launch_ms is 50", True),
        ("over_time_budget", f"launch: {OUT_OF_BUDGET}", False),
        ("over_time_budget", "launch: not reached within limits.task_timeout_s (600 s)", False),
        ("over_time_budget", "launch: not launched: 3 smaller configs, no larger in any dimension", False),
        ("quarantined", "probe: not launched: it reaches beyond the end", False),
        ("device_fault", "launch: clWaitForEvents failed", False),
    ],
)  # fmt: skip
def test_what_ours_gave_up_unseen_is_given_to_nobody(
    status: str, detail: str | None, is_launched: bool
) -> None:
    assert was_launched({"status": status, "failure_detail": detail}) is is_launched


def test_what_kernel_tuner_is_given() -> None:
    buffer, scalar = _argument("float", position=0), _argument("int", position=1, kind=ArgumentKind.SCALAR)  # fmt: skip
    vector = _argument(
        "float", position=2, kind=ArgumentKind.SCALAR, vector_width=4, element_bytes=16
    )
    launch = dataclasses.replace(
        _job("k").launches[0],
        args=(
            LaunchArgument(position=0, kind=buffer.kind, elements=5),
            LaunchArgument(position=1, kind=scalar.kind, value=7.0),
            LaunchArgument(position=2, kind=vector.kind, value=0.5),
        ),
    )
    job = _job("k", arguments=(buffer, scalar, vector), launches=(launch,))
    array, number, lanes = arguments_of(job)
    assert (array.dtype, number) == (np.float32, np.int32(7))
    assert isinstance(lanes, np.void)
    assert lanes.tobytes() == np.full(4, 0.5, np.float32).tobytes()
    assert unsupported(job) == ""
    local = _argument("float", kind=ArgumentKind.LOCAL_BUFFER)
    assert unsupported(_job("k", arguments=(local,))) == "local_buffer_argument"


# -- the whole ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Compared:
    """A finished comparison."""

    folder: Path
    command: list[str]
    has_tuner: bool

    def results(self) -> dict[tuple[str, str], Mapping[str, str]]:
        """Return the rows of ``results.csv`` by part and subset."""
        with (self.folder / "results.csv").open(newline="") as stream:
            return {(row["part"], row["subset"]): row for row in csv.DictReader(stream)}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("cpu", marks=(pytest.mark.opencl, *NIGHTLY)),
        pytest.param("cuda:0", marks=pytest.mark.gpu),
    ],
)
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """The command on three kernels, one of which faults."""
    ref = choose(request.param)
    if isinstance(ref, NoDevice):
        if request.param == "cpu":
            pytest.fail(ref.message())
        pytest.skip(f"no GPU: {ref.message()}")
    folder = tmp_path_factory.mktemp("compared")
    for name, source in SOURCES.items():
        (folder / f"{name}.cl").write_text(source, encoding="utf-8")
    write_corpus(folder / "corpus.parquet", read_sources([folder]))
    has_tuner = importlib.util.find_spec("kernel_tuner") is not None
    command = [
        sys.executable, "-m", "benchmarks.collecting.collectors", str(folder / "corpus.parquet"), "--device", request.param,
        "--kernels", "0", "--samples-per-kernel", "3", "--out", str(folder / "out"),
        "--repeat", "--parts", "ours,c,b,a" if has_tuner else "ours,c,a",
        *QUICK,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert "ours" in done.stdout
    return Compared(folder=folder / "out", command=command, has_tuner=has_tuner)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_faulty_kernel_is_left_out_and_the_others_are_in_every_part(compared: Compared) -> None:
    with (compared.folder / "excluded.csv").open(newline="") as stream:
        (gone,) = csv.DictReader(stream)
    assert (gone["when"], gone["reason"]) == ("screen", "device_fault")
    kept = read_corpus(compared.folder / "kept.parquet").kernels
    assert {one.name for one in kept} == {"scaled", "summed"}
    results = compared.results()
    assert (results["ours", "whole"]["ok"], results["c", "whole"]["ok"]) == ("6", "6")
    assert (results["a", "whole"]["ok"], results["a", "whole"]["configs"]) == ("2", "2")
    assert results["c", "common"]["ok"] == results["ours", "common"]["ok"] == "6"
    for part in ("a", "c"):
        assert float(results[part, "whole"]["ratio_wall"]) > 0
        assert float(results[part, "whole"]["ratio_work"]) > 0
    assert results["ours", "whole"]["analysed_before"] == "0.000"


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_every_part_times_what_ours_has_planned(compared: Compared) -> None:
    rows = open_dataset(compared.folder / "ours").samples().to_pylist()
    ids = {row["sample_id"] for row in rows}
    for row in rows:
        launch = launch_from_row(row)
        assert launch.sample_id == sample_id(
            kernel_id=row["kernel_id"],
            global_size=launch.global_size,
            local_size=launch.local_size,
            args=[launch_argument_json(one) for one in launch.args],
            device_class=row["device_class"],
        )
    looped = rows_of(read_log(compared.folder / "c" / "log.jsonl"))
    assert {row["sample_id"] for row in looped} == ids
    assert all(row["num_readings"] >= 5 and len(row["cold_ns"]) == 3 for row in looped)
    with (compared.folder / "agreement.csv").open(newline="") as stream:
        counts = {(r["pair"], r["subset"]): int(r["num_configs"]) for r in csv.DictReader(stream)}
    assert counts["ours and c", "all"] == counts["ours and screen", "all"] == 6
    assert counts["ours and a", "all"] == 2


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_ours_and_the_plain_loop_are_run_twice_to_know_their_noise(compared: Compared) -> None:
    first, second = (
        [row["sample_id"] for row in rows_of(read_log(compared.folder / part / "log.jsonl"))]
        for part in ("c", "c_again")
    )
    assert sorted(first) == sorted(second)
    assert first != second, "in another order"
    columns = ["00_ours", "01_ours", "02_plain", "03_ours", "04_plain"]
    with (compared.folder / "medians.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert header == ["kernel_id", "sample_id", *columns]
    assert len(rows) == 6
    assert all(float(value) > 0 for row in rows for value in row[2:])
    with (compared.folder / "agreement.csv").open(newline="") as stream:
        pairs = {row["pair"] for row in csv.DictReader(stream)}
    assert {"ours and repeat", "c and c again", "ours and c again"} <= pairs


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_kernel_tuner_times_what_it_can(compared: Compared) -> None:
    if not compared.has_tuner:
        pytest.skip("kernel_tuner is not installed: see benchmarks/collecting/collectors/tuner.py")
    rows = rows_of(read_log(compared.folder / "b" / "log.jsonl"))
    assert sorted(row["status"] for row in rows) == ["local_buffer_argument"] * 3 + ["ok"] * 3
    good = [row for row in rows if row["status"] == "ok"]
    assert all(row["num_readings"] == 7 and row["call_s"] > row["own_s"] > 0 for row in good)
    assert compared.results()["b", "whole"]["ok"] == "3"


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_same_command_goes_on_where_it_was(compared: Compared) -> None:
    path = compared.folder / "stages.json"
    before, results = json.loads(path.read_text()), compared.results()
    path.write_text(json.dumps({name: before[name] for name in before if name != "a"}))
    (compared.folder / "a" / "log.jsonl").write_text("cut off")
    done = subprocess.run(
        compared.command, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    after = json.loads(path.read_text())
    assert after.pop("a") != before.pop("a"), "what was not done is done from its beginning"
    assert after == before, "what was done is not done again"
    assert compared.results()["a", "whole"]["ok"] == results["a", "whole"]["ok"]
    for part in ("ours", "c", "c_again"):
        assert compared.results()[part, "whole"] == results[part, "whole"]


@pytest.mark.parametrize("problem", ["", "benchmarks.collecting.collectors.tuner does not start"])
def test_what_could_not_be_timed_is_tried_again_and_what_was_is_not(
    tmp_path: Path, problem: str
) -> None:
    stages = {"b": dataclasses.asdict(PartRun(wall_s=1.0, problem=problem))}
    (tmp_path / "stages.json").write_text(json.dumps(stages))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "log.jsonl").write_text("{}\n")
    limits = Limits()
    settings = Settings(
        corpus=tmp_path / "none.parquet", out=tmp_path, device="cpu", num_kernels=0, seed=1, limits=limits
    )  # fmt: skip
    comparison = Comparison(settings, DeviceRef(selector="cpu", platform="", name=""))
    if problem:
        with pytest.raises(CorpusError):  # it begins, and there is nothing to time here
            comparison.run_part("b")
    else:
        comparison.run_part("b")
    assert (tmp_path / "b" / "log.jsonl").exists() is not bool(problem)


def test_work_survives_its_file(tmp_path: Path) -> None:
    contents = Contents(rule=ContentsRule.PREFIX, limit=9)
    launch = dataclasses.replace(_job("k").launches[0], args=(_given(4, contents),))
    leaves = (Leaf(offset_bytes=0, scalar_type="int", count=2),)
    work = _work(_job("k", arguments=(_argument("int", leaves=leaves),), launches=(launch,)))
    write_work(tmp_path / "work.json", work)
    assert read_work(tmp_path / "work.json") == work
