"""What a wheel holds, what the extras bring, and that the types of the API reach a user's checker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from llmperf.cli.doctor import _EXTRAS
from tests.support.wheel import PACKAGES, REPOSITORY


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = project["project"]["optional-dependencies"]
    return found


def test_a_predictor_does_not_bring_torch() -> None:
    names = {name: {text.split(">")[0] for text in texts} for name, texts in extras().items()}
    assert names["gbdt"] == {"lightgbm"}
    assert {"torch", "transformers", "safetensors", "deepspeed"} < names["train"]
    assert names["gbdt"] < names["train"]


def test_doctor_knows_the_extras() -> None:
    bundles = {"pocl", "dev"}  # of an extra that is listed, and of tools
    assert set(_EXTRAS) == set(extras()) - bundles


NAMED = re.compile(r"(?:llmperf|[\"' ]\.)\[([a-z0-9,]+)\]")
"""``llmperf[pocl,gbdt]``, or the same of a checkout: ``-e ".[pocl,gbdt]"``."""


def extras_named(path: Path) -> set[str]:
    found = NAMED.findall(path.read_text(encoding="utf-8"))
    return {name for names in found for name in names.split(",")}


def test_each_extra_that_a_page_or_a_message_names_exists() -> None:
    places = [REPOSITORY / name for name in (*PACKAGES, "docs", "configs")]
    kinds = (".py", ".md", ".ipynb", ".toml", ".yaml")
    files = [path for place in places for path in place.rglob("*") if path.suffix in kinds]
    named = {path: extras_named(path) for path in (*files, REPOSITORY / "README.md")}
    assert {"pocl", "gbdt", "train", "cluster", "s3", "cuda"} <= set().union(*named.values())
    assert {
        path: names - set(extras()) for path, names in named.items() if names - set(extras())
    } == {}


def test_who_trains_trees_is_not_told_to_install_torch() -> None:
    preset = REPOSITORY / "configs" / "train"
    assert extras_named(preset / "gbdt.toml") == {"gbdt"}
    for model in ("feature-network", "feature-ensemble"):
        assert extras_named(preset / f"{model}.toml") == {"train"}
    for page in ("first-dataset.md", "llmperf-in-a-notebook.ipynb"):
        assert extras_named(REPOSITORY / "docs" / "tutorial" / page) == {"pocl", "gbdt"}
    table = (REPOSITORY / "docs" / "explanation" / "predictor.md").read_text(encoding="utf-8")
    (row,) = [line for line in table.splitlines() if line.startswith("| `gbdt` |")]
    assert NAMED.findall(row) == ["gbdt"]


@pytest.fixture(scope="module")
def built(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What our wheel installs."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_holds_types_and_data(built: Path) -> None:
    data = (".toml", ".yaml", ".lua", ".h", ".cl", ".css", ".html", ".js", ".typed")
    for package in PACKAGES:
        assert (built / package / "py.typed").is_file()
        for path in (REPOSITORY / package).rglob("*"):
            if path.suffix in data:
                assert (built / path.relative_to(REPOSITORY)).is_file()


USER = """
from pathlib import Path

import llmperf
from llmperf import CollectProgress, LlmperfError


def show(progress: CollectProgress) -> None:
    print(progress.num_tasks_done, progress.eta_s or 0.0)


try:
    summary = llmperf.collect(
        ["kernels", Path("more.cl")],
        "runs/first",
        device="cpu",
        samples_per_kernel=8,
        overrides={"plan.seed": 1},
        progress=show,
    )
    pending: int = summary.num_pending
    names: list[str] = [device.name for device in summary.devices]
except LlmperfError as error:
    code: int = error.exit_code

dataset = llmperf.open_dataset("runs/first")
rows: int = dataset.of_kernel("saxpy").num_rows
counts: dict[str, int] = dataset.stats().by_status
found = llmperf.verify("runs/first")
kinds: list[str] = [problem.kind.value for problem in found.problems] if not found.clean else []
run = llmperf.train("runs/first", "runs/model", overrides=["train.seed=1"], progress=print)
scored = llmperf.evaluate(run.folder, "runs/first", "runs/evaluation")
page: Path = llmperf.report("runs/first", "page.html", evaluation=scored.folder, kernels="all")
few: Path = llmperf.report("runs/first", "few.html", kernels=["saxpy"])
model = llmperf.load_model(run.folder)
one: llmperf.Prediction = model.predict("kernels/saxpy.cl", global_size=4096, local_size=(64,))
many = model.predict_many("a.cl", [{"global_size": 4096, "local_size": 64, "args": {"n": 1}}])
times_ns: list[float] = [one.time_ns, *(other.time_ns for other in many)]
cluster = llmperf.collect_on_cluster("kernels", "runs/second", progress=True)
"""
WRONG = """
import llmperf

llmperf.collect("kernels", "runs/first", samples_per_kernel="8")
summary = llmperf.verify("runs/first")
summary.clean()
"""


def checked(program: str, built: Path, folder: Path) -> str:
    """What ``mypy --strict`` says of a user's program, where the wheel is installed."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(built)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    ).stdout


@pytest.mark.slow
def test_a_strict_checker_sees_the_types_of_the_api(built: Path, tmp_path: Path) -> None:
    assert checked(USER, built, tmp_path) == ""
    found = checked(WRONG, built, tmp_path)
    assert 'Argument "samples_per_kernel" to "collect" has incompatible type "str"' in found
    assert '"bool" not callable' in found
