"""The kernels of tests/fixtures in one real run on a CPU device: each its code, in its time, and no other kernel harmed.

``make test`` runs the quick ones with the default strategy, ``make slow`` the others with it, ``make nightly`` all with another.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmperf_common.failures import FailureCode
from llmperf_common.records import Strategy
from llmperf_common.store.tables.reader import open_dataset
from tests.fixtures.table import SKIPPED, Fixture, files_present, read_fixtures
from tests.support.collecting import KERNELS, Collect
from tests.support.in_process import llmperf
from tests.support.sampling import NIGHTLY, SLOW
from workers.config import CollectConfig
from workers.discovery.find import NoDevice, choose

FIXTURES = read_fixtures()
QUICK = tuple(file for file, one in FIXTURES.items() if one.quick)
OTHERS = tuple(file for file, one in FIXTURES.items() if not one.quick)
RUNS: dict[str, tuple[tuple[str, ...], Strategy]] = {
    "quick": (QUICK, CollectConfig().plan.strategies[0]),
    "all, simple": (tuple(FIXTURES), Strategy.SIMPLE),
    "others": (OTHERS, CollectConfig().plan.strategies[0]),
}
GOOD = ("saxpy", "stencil1d_3", "transpose_naive")
CORPUS_BUDGET_S = 180.0
"""Finding the device, its peaks, and reading all sources. The macro bomb gets 30 s of the parser's CPU time for it, which
may be 90 s of a busy machine's."""
GOOD_TASK_S = 5.0
"""What a good kernel takes at most on a machine that is not overloaded; budgets are for such a one."""
MARK = "LLMPERF_TEST_MARK"
pytestmark = [pytest.mark.opencl, pytest.mark.timeout(900)]

OPTIONS = (
    "--samples-per-kernel", "2",
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.sample_budget_ms=20",
    "--set", "timing.max_launch_ms=100",
    "--set", "plan.max_work_items=4096",
    "--set", "plan.max_groups_per_unit=21",
    "--set", "plan.local_sizes=few",
    "--set", "limits.config_timeout_s=10",
    "--set", "limits.build_timeout_s=30",
    "--set", "limits.analysis_timeout_s=10",
    "--set", "ledger.claim_ahead=1",  # one task at a time: claimed to finished is its own time
    "--set", "store.commit_interval_s=0.5",
    "--set", "store.publish_interval_s=0.5",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A finished collect: how it ended, its rows by (file, kernel), and how long each task took."""

    files: tuple[str, ...]
    runtime: str
    code: int
    err: str
    out: Path
    rows: dict[tuple[str, str], list[dict[str, Any]]]
    seconds: dict[tuple[str, str], float]
    order: tuple[tuple[str, str], ...]
    seconds_to_first_claim: float
    left_processes: tuple[str, ...]
    left_files: tuple[str, ...]

    @property
    def slowness(self) -> float:
        """How much longer than planned everything takes here: a test must not fail for its neighbours on the machine."""
        good = statistics.median(self.seconds[f"{name}.cl", name] for name in GOOD)
        return max(1.0, good / GOOD_TASK_S)

    def statuses(self, file: str, kernel: str) -> list[str]:
        """The statuses of one kernel's rows."""
        return [row["status"] for row in self.rows[file, kernel]]


MARKS = {"quick": (), "others": SLOW, "all, simple": NIGHTLY}


def _marked(name: str, *rest: str) -> Any:
    marks = MARKS[name]
    return pytest.param(name, *rest, marks=marks, id=", ".join([name, *rest]))


EACH_RUN = [_marked(name) for name in RUNS]
EACH_SKIPPED = [
    _marked(name, file)
    for name, (files, _) in RUNS.items()
    for file in files
    if SKIPPED in FIXTURES[file].gives
]
EACH_KERNEL = [
    _marked(name, file, kernel)
    for name, (files, _) in RUNS.items()
    for file in files
    if SKIPPED not in FIXTURES[file].gives
    for kernel in FIXTURES[file].kernels
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Collect each run of RUNS once, when first asked for it."""

    @functools.cache
    def collected(name: str) -> Run:
        return _collected(name, tmp_path_factory.mktemp("fixtures"))

    return collected


@pytest.fixture
def run(request: pytest.FixtureRequest, runs: Callable[[str], Run]) -> Run:
    """One of RUNS. Not of module scope: pytest would make it anew for each place in a table of parameters."""
    finished: Run = runs(request.param)
    return finished


def _collected(name: str, folder: Path) -> Run:
    """Fixtures and three good kernels, on a CPU device and on no other."""
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(f"no CPU OpenCL device, so NO fixture is tested: {found.message()}")
    files, strategy = RUNS[name]
    corpus, scratch = folder / "kernels", folder / "tmp"
    corpus.mkdir()
    scratch.mkdir()
    for file in files:
        (corpus / file).write_bytes(FIXTURES[file].content)
    for good in GOOD:
        shutil.copy(KERNELS / f"{good}.cl", corpus)
    mark = uuid.uuid4().hex
    options = (*OPTIONS, "--strategy", strategy.value)
    command = Collect(corpus, folder / "data", "cpu", options, {MARK: mark, "TMPDIR": str(scratch)})
    started_s = time.time()
    done = command.run(timeout_s=800)
    return _finished(files, folder / "data", done.returncode, done.stderr, started_s, mark, scratch)


def _finished(
    files: tuple[str, ...],
    out: Path,
    code: int,
    err: str,
    started_s: float,
    mark: str,
    scratch: Path,
) -> Run:
    left = tuple(marked_processes(mark))
    events = [
        json.loads(line)
        for path in sorted((out / "events").iterdir())
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    claimed = {one["task_id"]: one["at_s"] for one in events if one["event"] == "claimed"}
    dataset = open_dataset(out)
    kernels = dataset.kernels().to_pylist()
    keys = {row["kernel_id"]: (row["path"], row["name"]) for row in kernels}
    tasks = {row["task_id"]: keys[row["kernel_id"]] for row in kernels}
    finished = [one for one in events if one["event"] == "finished"]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in keys.values()}
    for row in dataset.samples().to_pylist():
        rows[keys[row["kernel_id"]]].append(row)
    platforms = set(dataset.devices().column("platform").to_pylist())
    return Run(
        files=files,
        runtime="intel" if platforms == {"Intel(R) OpenCL"} else "pocl",
        code=code,
        err=err,
        out=out,
        rows=rows,
        seconds={tasks[one["task_id"]]: one["at_s"] - claimed[one["task_id"]] for one in finished},
        order=tuple(tasks[one["task_id"]] for one in finished),
        seconds_to_first_claim=min(claimed.values()) - started_s,
        left_processes=left,
        left_files=tuple(sorted(str(path.relative_to(scratch)) for path in scratch.iterdir())),
    )


def marked_processes(mark: str) -> Iterator[str]:
    """Yield the command lines of all processes that have inherited ``mark``, whichever their parent is now."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                yield " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue


# ------------------------------------------------------------------ the table


def test_the_table_names_every_fixture_and_only_codes_that_exist() -> None:
    assert set(FIXTURES) == files_present()
    assert len(FIXTURES) >= 28
    assert set(QUICK) < set(FIXTURES)
    codes = {code.value for code in FailureCode} | {"ok"}
    everywhere = list(FIXTURES.values())
    for fixture in everywhere + [one for table in everywhere for one in table.others.values()]:
        assert set(fixture.gives) <= codes | {SKIPPED}, fixture.file
        assert set(fixture.then) <= codes, fixture.file
        assert FailureCode.INTERNAL_ERROR not in {*fixture.gives, *fixture.then}, fixture.file


# ------------------------------------------------------------------ each fixture


@pytest.mark.parametrize(("run", "file"), EACH_SKIPPED, indirect=["run"])
def test_a_file_without_a_kernel_is_skipped_and_said_so(run: Run, file: str) -> None:
    fixture = FIXTURES[file]
    assert not [key for key in run.rows if key[0] == file]
    assert f"skipped {file}: {fixture.words}" in run.err


@pytest.mark.parametrize(("run", "file", "kernel"), EACH_KERNEL, indirect=["run"])
def test_a_fixture_gives_its_code_in_its_time(run: Run, file: str, kernel: str) -> None:
    fixture = FIXTURES[file].on(run.runtime)
    statuses = run.statuses(file, kernel)
    assert set(statuses) & set(fixture.gives), statuses
    assert set(statuses) <= {*fixture.gives, *fixture.then}, statuses
    assert_said(run, fixture, kernel)
    assert_judged(run, fixture, kernel)
    assert run.seconds[file, kernel] <= fixture.budget_s * run.slowness


def assert_said(run: Run, fixture: Fixture, kernel: str) -> None:
    """Every failed row has its evidence, and null times."""
    for row in run.rows[fixture.file, kernel]:
        if row["status"] == "ok":
            assert row["median_ns"] > 0
            continue
        assert row["failure_detail"], row["status"]
        assert row["time_ns"] is None
        assert row["median_ns"] is None
        if row["status"] in fixture.gives:
            assert fixture.words in row["failure_detail"]


def assert_judged(run: Run, fixture: Fixture, kernel: str) -> None:
    """The payload checks say what they are to say."""
    judged = [
        row["checks"]
        for row in run.rows[fixture.file, kernel]
        if row["status"] == "ok" and row["checks"]["writes_output"] is not None
    ]
    assert judged or not fixture.checks, "no row was judged"
    for checks in judged:
        assert {name: checks[name] for name in fixture.checks} == fixture.checks


# ------------------------------------------------------------------ the run


@pytest.mark.parametrize("run", EACH_RUN, indirect=True)
def test_the_run_ends_well_and_its_books_balance(run: Run) -> None:
    assert run.code == 0, run.err
    found = re.search(r"planned ([\d,]+) = ok ([\d,]+) \+ failed ([\d,]+) \+ pending 0", run.err)
    assert found, run.err
    planned, ok, failed = (int(number.replace(",", "")) for number in found.groups())
    statuses = [row["status"] for rows in run.rows.values() for row in rows]
    assert len(statuses) == planned
    assert statuses.count("ok") == ok
    assert planned == ok + failed
    assert "internal_error" not in statuses


@pytest.mark.parametrize("run", EACH_RUN, indirect=True)
def test_every_kernel_of_every_file_is_there(run: Run) -> None:
    expected = {
        (file, kernel)
        for file in run.files
        if SKIPPED not in FIXTURES[file].gives
        for kernel in FIXTURES[file].kernels
    }
    assert set(run.rows) == expected | {(f"{name}.cl", name) for name in GOOD}


@pytest.mark.parametrize("run", EACH_RUN, indirect=True)
def test_good_kernels_among_them_are_unharmed(run: Run) -> None:
    for name in GOOD:
        assert set(run.statuses(f"{name}.cl", name)) == {"ok"}, name
    places = [run.order.index((f"{name}.cl", name)) for name in GOOD]
    assert max(places) > 0, "something was run before the last of them"
    assert min(places) < len(run.order) - 1, "something was run after the first of them"


@pytest.mark.parametrize("run", EACH_RUN, indirect=True)
def test_the_dataset_verifies_clean(run: Run) -> None:
    done = llmperf("dataset", "verify", run.out)
    assert done.code == 0, done.out


@pytest.mark.parametrize("run", EACH_RUN, indirect=True)
def test_no_source_holds_up_the_corpus(run: Run) -> None:
    assert run.seconds_to_first_claim < CORPUS_BUDGET_S * run.slowness


@pytest.mark.parametrize("run", EACH_RUN, indirect=True)
def test_nothing_is_left_behind(run: Run) -> None:
    assert run.left_processes == ()
    assert run.left_files == ()
