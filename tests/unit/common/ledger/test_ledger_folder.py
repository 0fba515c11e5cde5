"""The folder of a ledger: each dataset has its own, also where the dataset lies on a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmperf_common.ledger import attach
from llmperf_common.ledger.attach import ledger_folder


def test_a_local_dataset_holds_its_ledger(tmp_path: Path) -> None:
    assert ledger_folder(tmp_path / "d", tmp_path / "state") == tmp_path / "d" / "ledger"


def test_datasets_on_a_network_file_system_never_share_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, /x/p-q and /x/p/q had one folder, and one of two runs ended with nothing collected."""
    monkeypatch.setattr(attach, "is_network_filesystem", lambda _path: True)
    paths = [tmp_path / "p-q", tmp_path / "p" / "q", tmp_path / ("\u9577\u3044/" * 100)]
    folders = [ledger_folder(path, tmp_path / "state") for path in paths]
    assert len(set(folders)) == 3
    assert all(
        one.parent == tmp_path / "state" and len(os.fsencode(one.name)) < 255 for one in folders
    )
    assert folders == [ledger_folder(path, tmp_path / "state") for path in paths]
