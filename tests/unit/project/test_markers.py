"""Tests that open a CPU OpenCL device carry the mark by which CI repeats them on Intel's runtime."""

from __future__ import annotations

import re

from tests.support.wheel import REPOSITORY

OPENS = re.compile(r'choose\("cpu"\)|"--device", "cpu"')
MARKED = "pytest.mark.opencl"
ALL_SLOW = re.compile(r"^pytestmark = .*pytest\.mark\.slow", re.MULTILINE)
WITHOUT_A_DEVICE = {"test_no_device.py"}
"""They ask for a CPU device where there is none."""


def test_what_opens_a_cpu_device_is_marked() -> None:
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for folder in ("unit", "integration")
        for path in (REPOSITORY / "tests" / folder).rglob("test_*.py")
    }
    opening = {name for name, text in texts.items() if OPENS.search(text)} - WITHOUT_A_DEVICE
    unmarked = {
        name for name in opening if MARKED not in texts[name] and not ALL_SLOW.search(texts[name])
    }
    assert len(opening) > 15
    assert unmarked == set()


def test_no_unit_test_opens_a_cpu_device() -> None:
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "tests" / "unit").rglob("test_*.py")
        if path.name != "test_markers.py"
    }
    assert [name for name, text in texts.items() if OPENS.search(text)] == []
