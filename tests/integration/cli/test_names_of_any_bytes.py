"""Paths and names that are not UTF-8, which Linux allows and Arrow refuses, give no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmperf.exits import Exit
from tests.integration.conftest import Trained
from tests.support.collecting import KERNELS
from tests.support.in_process import assert_refused, llmperf

NAME = os.fsdecode(b"q\xff")


@pytest.mark.slow
def test_train_and_evaluate(trained: Trained, tmp_path: Path) -> None:
    run, scored = tmp_path / f"run-{NAME}", tmp_path / f"scored-{NAME}"
    for command in (
        ("train", "--data", trained.data, "--out", run, "--preset", "gbdt", "--set", "gbdt.tune=false", "--set", "gbdt.num_rounds=5"),
        ("evaluate", run, "--data", trained.data, "--out", scored, "--split", "all", "--allow-seen"),
    ):  # fmt: skip
        done = llmperf(*command)
        assert done.code == 0, done.err
    assert (run / "predictions.parquet").stat().st_size > 0
    assert (scored / "predictions.parquet").stat().st_size > 0


@pytest.mark.parametrize("form", ["arrow", "csv"])
def test_export(trained: Trained, tmp_path: Path, form: str) -> None:
    done = llmperf("dataset", "export", trained.data, "--out", tmp_path / NAME, "--format", form)
    assert done.code == 0, done.err
    assert {one.name for one in (tmp_path / NAME).iterdir()} == {
        f"{table}.{form}" for table in ("samples", "kernels", "devices")
    }


def test_corpus_build(tmp_path: Path) -> None:
    out = tmp_path / f"{NAME}.parquet"
    done = llmperf("corpus", "build", KERNELS / "saxpy.cl", "--out", out)
    assert done.code == 0, done.err
    assert out.stat().st_size > 0


def test_a_kernel_of_such_a_name_is_not_there(trained: Trained, tmp_path: Path) -> None:
    done = llmperf("report", trained.data, "--kernel", NAME, "--out", tmp_path / "page.html")
    assert_refused(done, Exit.BAD_INPUT, "q\\udcff")
