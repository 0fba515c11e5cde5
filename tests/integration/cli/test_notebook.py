"""The notebook runs from its first cell to its last, as Jupyter would run it, without Jupyter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.collecting import REPOSITORY
from workers.discovery.find import NoDevice, choose

NOTEBOOK = REPOSITORY / "docs" / "tutorial" / "llmperf-in-a-notebook.ipynb"

RUNNER = """
import ast, json, sys
space = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), space)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), space)
        if value is not None:
            show = getattr(value, "_repr_html_", None)
            print(f"\\n[{number}]", show() if show else repr(value))
"""
"""Runs the cells in one namespace and shows the last value of each, as a notebook does."""


def cells() -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    found: list[dict[str, Any]] = document["cells"]
    return found


def test_it_is_stored_without_outputs() -> None:
    for cell in cells():
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_cell_runs(tmp_path: Path) -> None:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(f"no CPU OpenCL device: {found.message()}")
    shutil.copytree(REPOSITORY / "kernels", tmp_path / "kernels")
    sources = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        cwd=tmp_path,
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.search(r"(\d+)/\1 tasks  \d+ ok", done.stdout)
    assert "did you mean 'plan.seed'" in done.stdout
    for title in ("collect: complete", "dataset ", "gbdt in ", "saxpy on "):
        assert f"<caption>{title}" in done.stdout
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()
