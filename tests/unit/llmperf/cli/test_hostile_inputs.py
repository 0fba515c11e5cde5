"""Single files that strangers made, named by a user: refused with a message, without waiting for their end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf.cli.report import _evaluation_view
from llmperf.exits import CommandError
from llmperf.prediction.configs import read_configs
from trainer.errors import BadInput
from workers.device.replay_file import read_replay_file

DEEP = "[" * 100_000

BAD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "nested": lambda path: path.write_text(DEEP),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bad", BAD)
def test_a_replay_file(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "replay.json"
    BAD[bad](path)
    with pytest.raises(ValueError, match=r"not a regular file|nested"):
        read_replay_file(path)


@pytest.mark.parametrize("text", [DEEP, '{"a":' + DEEP])
def test_launches_that_nest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "launches.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="nested too deeply"):
        read_configs(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bad", [*BAD, "list"])
@pytest.mark.parametrize("name", ["metrics.json", "predictions.parquet"])
def test_an_evaluation(tmp_path: Path, name: str, bad: str) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "predictions.parquet")
    (tmp_path / name).unlink()
    BAD.get(bad, lambda path: path.write_text("[]"))(tmp_path / name)
    with pytest.raises(CommandError, match="not a readable evaluation"):
        _evaluation_view(tmp_path, None)
