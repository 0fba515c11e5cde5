"""The run lock: a process that waits for it names the holder."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from llmperf_common.ledger.attach import ATTACH_LOCK
from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem, StoreError
from llmperf_common.store.files.lock_holders import lock_holders
from llmperf_common.store.files.run_lock import (
    CollectingError,
    alone,
    beside_others,
    naming_holders,
)
from llmperf_common.store.manifests.run import RUN_LOCK

HOLDER = """
import sys
from pathlib import Path
from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem, StoreError
with PosixFilesystem(Path(sys.argv[1])).lock(sys.argv[3], exclusive=sys.argv[2] == "alone", wait=True):
    print("held", flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that holds the lock."""

    def __init__(self, folder: Path, how: str, name: str = RUN_LOCK) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder), how, name, "redis://:secret@head"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def end(self) -> None:
        self.process.communicate("")


@pytest.mark.parametrize("how", ["alone", "beside"])
def test_who_wants_it_alone_is_told_who_has_it(tmp_path: Path, how: str) -> None:
    holder = Holder(tmp_path, how)
    try:
        with pytest.raises(CollectingError) as caught, alone(PosixFilesystem(tmp_path), "compact"):
            pass
    finally:
        holder.end()
    told = str(caught.value)
    assert f"process {holder.process.pid} on {socket.gethostname()} ({sys.executable} -c" in told
    assert " since 20" in told
    assert " UTC: wait until `llmperf status` shows" in told
    assert "secret" not in told


def test_a_holder_has_the_time_of_its_start(tmp_path: Path) -> None:
    before_s = time.time()
    holder = Holder(tmp_path, "alone")
    after_s = time.time()
    try:
        [found] = lock_holders(PosixFilesystem(tmp_path), RUN_LOCK)
    finally:
        holder.end()
    since = datetime.strptime(found.since, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    # The kernel's boot time, which a start is counted from, has whole seconds.
    assert before_s - 2 <= since.timestamp() <= after_s


def test_who_waits_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holder = Holder(tmp_path, "alone")
    told = threading.Event()
    caplog.handler.addFilter(lambda _record: told.set() or True)

    def let_go() -> None:
        told.wait(60)
        holder.end()

    thread = threading.Thread(target=let_go)
    thread.start()
    with caplog.at_level(logging.WARNING), beside_others(PosixFilesystem(tmp_path)):
        assert told.is_set(), "it did not come in before the other had gone"
        assert [one.pid for one in lock_holders(PosixFilesystem(tmp_path), RUN_LOCK)] == []
    thread.join()
    assert f"waiting for process {holder.process.pid} on " in caplog.text


def test_who_waits_for_a_lock_of_another_name_says_for_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, ``collect`` waited in silence while another one rebuilt the ledger."""
    (tmp_path / ATTACH_LOCK).parent.mkdir()
    holder = Holder(tmp_path, "alone", ATTACH_LOCK)
    told = threading.Event()
    caplog.handler.addFilter(lambda _record: told.set() or True)
    fs = PosixFilesystem(tmp_path)
    try:
        with caplog.at_level(logging.WARNING), naming_holders(fs, ATTACH_LOCK):
            assert told.wait(60)
    finally:
        holder.end()
    assert f"waiting for process {holder.process.pid} on " in caplog.text
    caplog.clear()
    with naming_holders(fs, ATTACH_LOCK), fs.lock(ATTACH_LOCK, exclusive=True, wait=True):
        time.sleep(1.5)  # longer than the wait for a message
    assert caplog.text == ""


def test_nobody_is_told_of_where_nobody_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with beside_others(PosixFilesystem(tmp_path)), beside_others(PosixFilesystem(tmp_path)):
        assert caplog.text == ""
    with alone(PosixFilesystem(tmp_path), "compact"):
        assert os.path.exists(tmp_path / RUN_LOCK)


def test_a_store_that_cannot_be_listed_names_nobody() -> None:
    fs = Mock(spec=Filesystem, names=Mock(side_effect=StoreError("the store does not answer")))
    assert lock_holders(fs, RUN_LOCK) == ()
