"""Python files in the working directory that have the names of standard modules are not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.collecting import KERNELS

_CODE = "from llmperf.cli.start import run; run()"
_BAIT = ("resource", "json", "socket", "selectors", "struct", "workers")
_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a kernel, and with modules that leave a mark and fail."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "a.cl").write_bytes((KERNELS / "saxpy.cl").read_bytes())
    for name in _BAIT:
        code = (
            f"open({str(tmp_path / 'mark')!r}, 'a').write(__name__)\nraise ImportError(__name__)\n"
        )
        (folder / f"{name}.py").write_text(code)
    return folder


@pytest.mark.opencl
@pytest.mark.parametrize(
    "words",
    [
        ["corpus", "build", "a.cl", "--out", "c.parquet"],
        ["predict", "a.cl", "--model", "h200", "--global-size", "1024", "--local-size", "64"],
        ["collect", "--corpus", "a.cl", "--out", "data", "--device", "cpu", "--preset", "demo"],
        pytest.param(
            ["collect", "--corpus", "a.cl", "--out", "data", "--device", "cpu", "--preset", "demo",
             "--cluster"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda words: " ".join([words[0], *words[-1:]]),
)  # fmt: skip
def test_no_command_imports_them(folder: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CODE, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder.parent / "mark").exists()
