"""What lies in a folder of checkpoints but is no checkpoint of ours is left alone, unread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.fit.checkpoint_folder import newest_whole, read_whole, steps_in


def checkpoint(folder: Path, name: str, files: dict[str, object], state: str = "{}") -> None:
    path = folder / name
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps({"files": files}))
    (path / "state.json").write_text(state)


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "..", "."])
def test_a_manifest_names_files_of_its_checkpoint_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"")
    checkpoint(tmp_path, "step-00000010", {name: {"bytes": 0, "sha256": ""}})
    found = read_whole(tmp_path, 10)
    assert isinstance(found, str)
    assert "no file of the checkpoint" in found


def test_a_state_that_is_no_object_is_not_whole(tmp_path: Path) -> None:
    checkpoint(tmp_path, "step-00000010", {}, state="[]")
    assert newest_whole(tmp_path) is None


def test_folders_with_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("step-00000010", "step-20", "99", "step-10"):
        checkpoint(tmp_path, name, {})
    assert steps_in(tmp_path) == [10]
