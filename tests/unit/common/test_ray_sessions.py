"""The folder of a private Ray cluster: a killed process leaves it, and a later one removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmperf_common.ray_sessions import _inside, _private_folder

HOLD = (
    "import sys\nfrom llmperf_common.ray_sessions import _private_folder\n"
    "with _private_folder() as folder:\n    print(folder, flush=True)\n    sys.stdin.read()\n"
)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for Ray's folders."""
    with tempfile.TemporaryDirectory(prefix="lp-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def holder() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder; the folder looks as if it were two minutes old."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline()).parent
    age(folder)
    return process, folder


def age(folder: Path) -> None:
    """Set back the time of a folder."""
    old_s = folder.stat().st_mtime - 120
    os.utime(folder, (old_s, old_s))


def test_only_folders_of_ended_processes_are_removed(root: Path) -> None:
    living, used = holder()
    killed, abandoned = holder()
    killed.kill()
    killed.communicate()
    assert abandoned.is_dir()
    with pytest.raises(ValueError, match="a test"), _private_folder() as folder:  # noqa: PT012
        assert {one.parent for one in (used, abandoned)} == {root}
        assert not abandoned.exists()
        assert used.is_dir()
        raise ValueError("a test")
    kept = Path(folder).parent  # for its logs
    age(kept)
    with _private_folder() as folder:
        assert kept.is_dir()
        assert used.is_dir()
    assert not Path(folder).parent.exists()
    living.communicate("")
    assert not used.exists()


def test_a_relative_path_in_the_environment_still_leads_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "token")
    with _inside("/"):
        assert Path.cwd() == Path("/")
        assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text() == "secret"
    assert Path.cwd() == tmp_path
