"""The folder of a ledger: each dataset has its own, also where the dataset lies on a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmperf_common.ledger import attach
from llmperf_common.ledger.attach import is_network_filesystem, ledger_folder


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


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [("nfs4", True), ("fuse", True), ("fuse.sshfs", True), ("virtiofs", True), ("fuseblk", False), ("ext4", False)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "written"), [("plain", "plain"), ("größe", "größe"), ("a b\\c", r"a\040b\134c")]
)
def test_the_file_system_of_a_mount_of_any_name_is_found(
    tmp_path: Path, kind: str, is_network: bool, name: str, written: str
) -> None:
    """Linux writes blanks and backslashes of a path as octal digits, and other characters as they are."""
    (tmp_path / name / "data").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"rootfs / ext4 rw 0 0\nserver:/x {tmp_path}/{written} {kind} rw 0 0\n", encoding="utf-8"
    )
    assert is_network_filesystem(tmp_path / name / "data", mounts) == is_network
    assert not is_network_filesystem(tmp_path, mounts)
