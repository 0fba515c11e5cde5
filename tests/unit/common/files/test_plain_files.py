"""Files that another user may have placed, read up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmperf_common.files.plain_files import UnfitFileError, read_plain


def test_a_small_file_takes_no_memory_for_its_limit(tmp_path: Path) -> None:
    """A read of as many bytes as the limit ended in a MemoryError under ``ulimit -v``."""
    (tmp_path / "small").write_bytes(b"few bytes")
    assert read_plain(tmp_path / "small", max_bytes=2**50) == b"few bytes"


def test_a_file_without_a_size_is_read_whole_and_up_to_its_limit() -> None:
    text = read_plain(Path("/proc/self/status"), max_bytes=2**20)
    assert text.startswith(b"Name:")
    assert b"Threads:" in text
    with pytest.raises(UnfitFileError, match="more than 100 bytes"):
        read_plain(Path("/proc/self/status"), max_bytes=100)
