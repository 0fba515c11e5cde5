"""A child process imports only what it needs: each child of a collection pays for its imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pydantic", "pyarrow", "pandas", "multiprocessing", "asyncio", "subprocess"}
DEVICE = {"numpy", "pyopencl", "clang", "pcpp"}
"""What a child imports when it opens its device or gets a job, not before."""
BY_PYOPENCL = {"concurrent.futures", "email", "importlib.metadata"}
"""Modules that pyopencl's own dependencies may import."""

FORBIDDEN = {
    "workers.measure.run_child": HEAVY | DEVICE | BY_PYOPENCL,
    "workers.execution.compile_child": HEAVY | DEVICE | BY_PYOPENCL,
    "workers.execution.analysis_child": HEAVY | DEVICE | BY_PYOPENCL,
    "workers.work.child": HEAVY,
    "workers.work.trace_child": HEAVY,
    "workers.source.parse_child": HEAVY | BY_PYOPENCL | {"numpy", "pyopencl"},
    "workers.discovery.trial_child": HEAVY | BY_PYOPENCL | {"pyopencl", "clang", "pcpp"},
}
WHEN_OPENED = (
    "workers.device.opencl.session",
    "workers.analysis.analyse",
    "workers.analysis.opencl_prober",
    "workers.analysis.probing",
    "workers.work.input_choice",
)
"""What run, compile and analysis children import when they open a real device."""


def imported_by(module: str) -> set[str]:
    """The names of the modules that a fresh interpreter has after it has imported ``module``."""
    code = f"import {module}, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


@pytest.mark.parametrize(("module", "forbidden"), FORBIDDEN.items(), ids=FORBIDDEN)
def test_a_child_imports_nothing_that_it_does_not_need(module: str, forbidden: set[str]) -> None:
    assert imported_by(module) & forbidden == set()


@pytest.mark.parametrize("module", WHEN_OPENED)
def test_a_real_device_needs_neither_pydantic_nor_arrow(module: str) -> None:
    assert imported_by(module) & {"pydantic", "pyarrow", "pandas", "multiprocessing"} == set()
