"""Reading kernels and predicting need no device: shown where there is none, and no library that could find one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from llmperf.exits import Exit
from tests.fixtures.table import read_fixtures
from tests.integration.conftest import Trained
from tests.support.collecting import KERNELS, llmperf_command

SAXPY = (
    "predict", KERNELS / "saxpy.cl", "--global-size", "65536", "--local-size", "64", "--arg", "alpha=2",
)  # fmt: skip


def run(environment: dict[str, str] | None, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        llmperf_command(*arguments), capture_output=True, text=True, env=environment, timeout=100, check=False
    )  # fmt: skip


def test_there_is_really_no_device(no_device: dict[str, str], tmp_path: Path) -> None:
    """Else the other tests here would show nothing."""
    done = run(
        no_device, "collect", "--corpus", KERNELS, "--out", tmp_path / "out", "--device", "cpu"
    )
    assert done.returncode == Exit.NO_DEVICE, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_predict_answers_as_it_does_beside_a_device(
    no_device: dict[str, str], trained: Trained
) -> None:
    command = (*SAXPY, "--model", trained.run, "--sweep", "local-size", "--json")
    without, beside = run(no_device, *command), run(None, *command)
    assert without.returncode == 0, without.stderr
    assert without.stderr == beside.stderr
    record = json.loads(without.stdout)
    assert record == json.loads(beside.stdout)
    assert record["kernel"] == "saxpy"
    assert 0 < record["interval"]["low_ns"] < record["time_ns"] < record["interval"]["high_ns"]
    assert len(record["sweep"]) > 1


def test_a_new_kernel_is_predicted_there_too(
    no_device: dict[str, str], trained: Trained, tmp_path: Path
) -> None:
    text = (KERNELS / "csr_spmv.cl").read_text(encoding="utf-8").replace("csr_spmv", "product")
    (tmp_path / "product.cl").write_text(text, encoding="utf-8")
    sizes = ("--global-size", "4096", "--local-size", "64")
    done = run(no_device, "predict", tmp_path / "product.cl", "--model", trained.run, *sizes)
    assert done.returncode == 0, done.stderr
    assert "the kernel's memory accesses are not known: no usable CPU OpenCL device" in done.stderr
    assert "argument 'vals' not given: using 4096 elements (the global size)" in done.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("__kernel void k(__global int *x", "expected function body"),
        ("__kernel void k(read_only image2d_t t, __global int *x) { x[0] = 1; }", "image"),
    ],
)
def test_predict_refuses_a_bad_source_there_too(
    no_device: dict[str, str], trained: Trained, tmp_path: Path, source: str, words: str
) -> None:
    (tmp_path / "bad.cl").write_text(source, encoding="utf-8")
    sizes = ("--global-size", "64", "--local-size", "64")
    done = run(no_device, "predict", tmp_path / "bad.cl", "--model", trained.run, *sizes)
    assert done.returncode == Exit.BAD_INPUT, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_source_that_crashes_the_parser_is_told_not_suffered(
    no_device: dict[str, str], trained: Trained, tmp_path: Path
) -> None:
    fixture = read_fixtures()["long_sum.cl"]
    (tmp_path / fixture.file).write_bytes(fixture.content)
    sizes = ("--global-size", "64", "--local-size", "64")
    done = run(no_device, "predict", tmp_path / fixture.file, "--model", trained.run, *sizes)
    assert done.returncode == Exit.BAD_INPUT, done.stderr
    assert "the parser died of signal 11" in done.stderr


def test_a_corpus_is_built_there_too(no_device: dict[str, str], tmp_path: Path) -> None:
    done = run(no_device, "corpus", "build", KERNELS, "--out", tmp_path / "corpus.parquet")
    assert done.returncode == 0, done.stderr
    shown = run(no_device, "corpus", "stats", tmp_path / "corpus.parquet")
    assert shown.returncode == 0, shown.stderr
    assert str(len(list(KERNELS.glob("*.cl")))) in shown.stdout
