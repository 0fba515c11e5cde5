"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = ("llmperf", "llmperf_common", "workers", "cluster", "trainer", "tests")
MODULES = sorted(
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    for package in PACKAGES
    for path in (REPOSITORY / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and "test_" not in path.name
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
