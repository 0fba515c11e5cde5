"""A change of LLMPerf's files during a run is noticed, by parent and child."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmperf_common import installation
from llmperf_common.installation import (
    HASH_VARIABLE,
    Installation,
    InstallationChanged,
    check_as_parent,
    loaded_installation,
)
from workers.device.interface import DeviceRef
from workers.sandbox.child_starter import ChildStarter
from workers.source.parse_pool import parse_sources


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two packages, which the functions take for LLMPerf's."""
    for name in ("llmperf_common/ids.py", "workers/work/hooks.cl", "workers/work/costs.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"one = {name!r}\n", encoding="utf-8")
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    monkeypatch.setattr(installation, "Installation", lambda: Installation(tmp_path))
    loaded_installation.cache_clear()
    yield tmp_path
    loaded_installation.cache_clear()


def edited(root: Path) -> None:
    (root / "workers/work/costs.py").write_text("two = 2\n", encoding="utf-8")


def added(root: Path) -> None:
    (root / "workers/new.py").touch()


def removed(root: Path) -> None:
    (root / "workers/work/hooks.cl").unlink()


def edited_with_old_size_and_time(root: Path) -> None:
    """As ``rsync --inplace -t`` may write it."""
    path = root / "llmperf_common/ids.py"
    found = path.stat()
    path.write_text("x" * found.st_size, encoding="utf-8")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("change", [edited, added, removed, edited_with_old_size_and_time])
def test_a_changed_file_is_named(root: Path, change) -> None:  # type: ignore[no-untyped-def]
    noted = Installation(root)
    noted.check()
    change(root)
    with pytest.raises(InstallationChanged, match=rf"\({root}/.*\.(py|cl)\), by an upgrade"):
        noted.check()
    assert Installation(root).sha256 != noted.sha256


def test_files_of_the_same_content_are_no_change(root: Path) -> None:
    noted = Installation(root)
    path = root / "workers/work/costs.py"
    shutil.copyfile(path, root / "copy")
    (root / "copy").replace(path)
    os.utime(path, (1, 1))
    (root / "workers/__pycache__").mkdir()
    (root / "workers/__pycache__/x.py").touch()
    (root / "workers/notes.txt").touch()
    (root / "workers/.#costs.py").symlink_to("editor@host.1")  # Emacs' lock
    (root / "workers/.ipynb_checkpoints").mkdir()
    (root / "workers/.ipynb_checkpoints/costs-checkpoint.py").touch()
    noted.check()
    assert Installation(root).sha256 == noted.sha256


def test_a_file_that_cannot_be_read_is_no_change(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as where no descriptor is left: the error is not an upgrade."""
    noted = Installation(root)
    (root / "workers/work/costs.py").touch()

    def fail(_path: str, _mode: str) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(installation, "open", fail, raising=False)
    with pytest.raises(OSError, match="too many open files"):
        noted.check()


def test_a_child_refuses_other_files_than_its_parents(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HASH_VARIABLE, Installation(root).sha256)
    check_as_parent()
    added(root)
    with pytest.raises(InstallationChanged, match="not those of the process that started this one"):
        check_as_parent()
    monkeypatch.delenv(HASH_VARIABLE)
    check_as_parent()  # a child that a developer starts by hand


def test_no_child_and_no_parser_is_started_after_a_change(root: Path, tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    starter = ChildStarter(scratch)  # notes the files
    edited(root)
    ref = DeviceRef(selector="replay:x", platform="", name="", environment={})
    with pytest.raises(InstallationChanged):
        starter.start("workers.measure.run_child", "run", ref)
    assert not list(scratch.iterdir())
    with pytest.raises(InstallationChanged):
        parse_sources(["__kernel void f(__global int *a) { a[0] = 1; }"])


def test_a_parser_that_ends_because_of_a_change_is_not_a_bad_source(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change falls between the parent's look and the child's."""
    noted = loaded_installation()
    looks = iter([None])

    def check() -> None:
        if next(looks, 1) is not None:
            Installation.check(noted)

    monkeypatch.setattr(noted, "check", check)
    edited(root)
    with pytest.raises(InstallationChanged):  # the real child hashes the real files: it refuses
        parse_sources(["__kernel void f(__global int *a) { a[0] = 1; }"])
