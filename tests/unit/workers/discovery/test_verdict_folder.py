"""The folder of remembered verdicts where a user has no home: only a private folder is used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from workers.discovery.candidates import Candidate, Source
from workers.discovery.runtime_trial import RuntimeVerdict
from workers.discovery.trial_verdicts import VerdictFile, default_folder

CANDIDATE = Candidate(source=Source.SYSTEM_ICD, environment={"OCL_ICD_VENDORS": "/nowhere"})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of a user without a home."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_without_a_home_the_folder_is_private(temporary: Path) -> None:
    cache = temporary / f"cache-{os.getuid()}"
    assert default_folder() == cache / "llmperf" / "opencl-probes"
    assert cache.stat().st_mode & 0o077 == 0
    cache.chmod(0o777)
    assert not default_folder().is_relative_to(cache), "others may have written there"
    cache.rmdir()
    cache.symlink_to(temporary)
    assert not default_folder().is_relative_to(cache)
    file = VerdictFile(CANDIDATE, default_folder())
    file.write(RuntimeVerdict(devices=(), absent=None, ended_itself=True))
    assert file.read() is None, "nothing is remembered, and nothing fails"
    with file.alone(lambda: None):
        pass
    assert list(temporary.iterdir()) == [cache]


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.write_text("precious")
    file = VerdictFile(CANDIDATE, tmp_path / "verdicts")
    (tmp_path / "verdicts").mkdir()
    with file.alone(lambda: None):
        pass
    (lock,) = (tmp_path / "verdicts").glob("*.lock")
    lock.unlink()
    lock.symlink_to(precious)
    with file.alone(lambda: None):
        pass
    assert precious.read_text() == "precious"


def _remembered(folder: Path) -> tuple[VerdictFile, Path]:
    """Write a verdict; return it, and the path of its file."""
    candidate = Candidate(source=Source.PIP_POCL, environment={"OCL_ICD_VENDORS": "/nowhere"})
    file = VerdictFile(candidate, folder)
    file.write(RuntimeVerdict(devices=(), absent=None, ended_itself=True))
    return file, next(folder.glob("*.json"))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[]", b"1", b"[" * 100_000, b'{"schema": ' + b"9" * 5000 + b"}",
        b'{"schema": 1, "until_s": 1e99, "tried_at_s": 1e300, "devices": [], "absent": null}',
        b'{"schema": 1, "until_s": 1e99, "tried_at_s": 0, "devices": ["x"], "absent": null}',
        b'{"schema": 1, "until_s": 1e99, "tried_at_s": 0, "devices": [], "absent": {}}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_verdict_remembers_nothing(tmp_path: Path, content: bytes) -> None:
    file, path = _remembered(tmp_path)
    assert file.read() is not None
    path.write_bytes(content)
    assert file.read() is None


@pytest.mark.timeout(10)
def test_only_a_regular_file_of_limited_size_is_a_verdict(tmp_path: Path) -> None:
    file, path = _remembered(tmp_path)
    text = path.read_bytes()
    path.write_bytes(text + b" " * 2**21)
    assert file.read() is None
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        assert file.read() is None
