"""A signal that comes while the command still imports its modules ends it with exit code 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SIGNALLED = """
import os, sys

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Sender())
sys.argv = ["llmperf", "collect", "--corpus", "kernels", "--out", {out!r}, "--device", "replay:none"]
from llmperf.cli.start import run
run()
"""


@pytest.mark.parametrize("at", ["typer", "llmperf.collecting"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_imports(tmp_path: Path, number: signal.Signals, at: str) -> None:
    code = SIGNALLED.format(at=at, number=int(number), out=f"{tmp_path}/data")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr in ("", "llmperf: interrupted\n")
