"""Files that appear whole or not at all, whatever lies beside them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from llmperf_common.files import replacing as module
from llmperf_common.files.replacing import replacing


def test_the_file_appears_at_the_end_and_a_failure_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)
    with replacing(target) as partial:
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask, "others may read what they may"

    def fail() -> None:
        with replacing(target) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_under_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, names were made of the process id, and a link there led into a file of the user."""
    monkeypatch.setattr(module.secrets, "token_hex", lambda _bytes: "known")
    precious = tmp_path / "thesis"
    precious.write_text("precious")
    (tmp_path / ".llmperf-known.partial").symlink_to(precious)
    with pytest.raises(FileExistsError), replacing(tmp_path / "c.parquet"):
        pass
    assert precious.read_text() == "precious"
