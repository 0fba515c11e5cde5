"""An environment variable of ``torchrun`` that is not a number gives a message that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmperf.exits import Exit
from tests.support.in_process import assert_refused, llmperf


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["abc", "-1", "1.5", "", "9" * 5000, "\u0661"])
def test_a_variable_that_is_no_number_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    done = llmperf("train", "--data", tmp_path, "--out", tmp_path / "run")
    assert_refused(done, Exit.USAGE, f"the environment variable {name} is ", "torchrun")
