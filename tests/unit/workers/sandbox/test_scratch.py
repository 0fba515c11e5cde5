"""Scratch folders in a TMPDIR that hosts share: only those of dead processes of this host are removed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from llmperf_common.ledger.holder import this_process
from llmperf_common.store.files.filesystem import StoreError
from workers.device.interface import DeviceRef
from workers.sandbox.child import Child
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.scratch import check_space, scratch_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_folders_of_other_hosts_and_of_living_processes_stay(shared: Path) -> None:
    """Before, a host removed the live folder of another one, whose kernels then failed for good."""
    own = this_process()
    elsewhere = dataclasses.replace(own, host="another", boot_id="1" * len(own.boot_id))
    same_boot_id = dataclasses.replace(own, host="a-container", pid=dead_pid())
    with contextlib.ExitStack() as stack:
        known = [stack.enter_context(scratch_folder(one)) for one in (elsewhere, same_boot_id, own)]
        with scratch_folder(own):
            assert all(folder.is_dir() for folder in known)
    assert list(shared.iterdir()) == []


def test_folders_of_dead_processes_and_of_earlier_boots_go(shared: Path) -> None:
    own = this_process()
    dead = dataclasses.replace(own, pid=dead_pid())
    earlier = dataclasses.replace(own, boot_id="0" * len(own.boot_id))
    with scratch_folder(dead) as one, scratch_folder(own):
        assert not one.exists()
    with scratch_folder(earlier) as one:
        with scratch_folder(own):
            assert one.exists(), "newer than this boot, so of another host of this name"
        os.utime(one, (1e9, 1e9))
        with scratch_folder(own):
            assert not one.exists()
    odd = [shared / name for name in ("llmperf-scratch-notes", "llmperf-scratch-a-b-c-d")]
    for path in odd:
        path.mkdir()
    with scratch_folder(own):
        assert all(path.is_dir() for path in odd)


def test_a_folder_that_is_gone_ends_the_run_like_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be used .*nothing committed is lost; set TMPDIR"):
        check_space(tmp_path / "gone")


def test_no_child_starts_where_the_scratch_folder_is_gone(tmp_path: Path) -> None:
    """Before, the first child made the folder again, and the binaries of earlier ones were lost."""
    gone = tmp_path / "gone"
    ref = DeviceRef(selector="replay:x", platform="", name="", environment={})
    with pytest.raises(StoreError, match="cannot be used"):
        ChildStarter(gone).start("workers.measure.run_child", "run", ref)
    with pytest.raises(FileNotFoundError):
        Child("workers.measure.run_child", "{}", environment={}, scratch=gone / "run")
    assert not gone.exists()
