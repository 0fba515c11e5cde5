"""The Python API with paths and texts that no file system or encoding takes: an error of LLMPerf's, or TypeError."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import llmperf
from llmperf.prediction.sources import SourceReader
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from trainer.errors import BadInput

LONG = "x" * 5000
UNFIT = ["a\0b", "\ud800", Path("a\0b"), LONG, LONG[:300]]
NO_PATH = [5, None, 1.5, b"a", []]


def named(value: Any) -> str:
    return ascii(value)[:20]


@pytest.mark.parametrize("path", UNFIT, ids=named)
def test_a_folder_that_cannot_exist(path: str | Path, tmp_path: Path) -> None:
    for call in (llmperf.open_dataset, llmperf.verify):
        with pytest.raises(StoreError):
            call(path)
    with pytest.raises(StoreError):
        llmperf.report(path, tmp_path / "r.html")
    with pytest.raises(StoreError):
        llmperf.train(path, tmp_path / "out")
    with pytest.raises(BadInput):
        llmperf.load_model(path)


@pytest.mark.parametrize("path", NO_PATH, ids=named)
def test_what_is_no_path(path: Any) -> None:
    for call in (llmperf.open_dataset, llmperf.verify):
        with pytest.raises(TypeError):
            call(path)


@pytest.mark.parametrize(
    "source",
    [
        LONG,
        LONG[:300],
        Path(LONG),
        "a\0b.cl",
        "\ud800.cl",
        "kernel void k() {} // \ud800",
        "kernel {\n\udc80",
    ],
    ids=named,
)
def test_a_source_that_cannot_be_read(source: str | Path) -> None:
    with pytest.raises(BadInput) as told:
        SourceReader().kernel(source, None)
    assert len(str(told.value)) < 400


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    for call in (PosixFilesystem(tmp_path).names, PosixFilesystem(tmp_path).folders):
        with pytest.raises(StoreError, match="Permission denied"):
            call()


def test_a_run_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(BadInput, match="Permission denied"):
        llmperf.load_model(tmp_path)
