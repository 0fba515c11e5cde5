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
sys.argv = ["llmperf", *{words!r}]
from llmperf.cli.start import run
run()
"""


COLLECT = ["collect", "--corpus", "kernels", "--device", "replay:none"]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("at", ["typer", "llmperf.collecting"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_imports(tmp_path: Path, number: signal.Signals, at: str) -> None:
    words = [*COLLECT, "--out", f"{tmp_path}/data"]
    done = python(SIGNALLED.format(at=at, number=int(number), words=words))
    assert done.returncode == 130, done.stderr
    assert done.stderr in ("", "llmperf: interrupted\n")


@pytest.mark.parametrize("words", [["status", "collect"], ["doctor", "--device", "collect"]])
def test_sigterm_ends_other_commands_as_it_ends_any_program(words: list[str]) -> None:
    done = python(SIGNALLED.format(at="typer", number=int(signal.SIGTERM), words=words))
    assert done.returncode == -signal.SIGTERM, done.stderr


def test_options_may_stand_before_the_command(tmp_path: Path) -> None:
    words = ["--verbose", *COLLECT, "--out", f"{tmp_path}/data"]
    done = python(SIGNALLED.format(at="typer", number=int(signal.SIGTERM), words=words))
    assert done.returncode == 130, done.stderr


BETWEEN = """
import sys
from llmperf.cli import main, start

def interrupted():
    raise KeyboardInterrupt

main._open_standard_streams = interrupted
sys.argv = ["llmperf", "doctor"]
start.run()
"""


def test_ctrl_c_between_the_imports_and_the_command() -> None:
    done = python(BETWEEN)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "llmperf: interrupted\n"
