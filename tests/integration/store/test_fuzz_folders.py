"""The fuzzer of folders: mutants follow from the seed, what is wrong is found, and a short run finds nothing.

The long one: ``python -m tests.fuzz.folders``.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.folder_mutate import json_of, mutate_file
from tests.support.collecting import REPOSITORY


def test_a_draw_gives_the_same_mutant(tmp_path: Path) -> None:
    texts = set()
    for number in (1, 1, 2, 3, 4):
        path = tmp_path / "a.json"
        path.write_text('{"a": [1, 2.5, {"b": "c"}], "d": null}')
        json_of(path, random.Random(number))
        texts.add(path.read_bytes())
    assert 2 <= len(texts) <= 4


def test_every_kind_of_file_is_changed(tmp_path: Path) -> None:
    for number in range(60):
        path = tmp_path / f"{number}.json"
        path.write_text('{"a": 1}')
        assert mutate_file(path, random.Random(number)).endswith(path.name)


@pytest.mark.slow
def test_a_short_run_finds_nothing() -> None:
    command = [sys.executable, "-m", "tests.fuzz.folders", "--number", "30", "--seed", "7"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "30 folders" in done.stdout


PROBE = """
import os, sys
from tests.fuzz.folders import run_command
import tests.fuzz.folders as fuzz

def misbehave(how):
    def run(command):
        if how == "bug":
            raise ZeroDivisionError
        if how == "signal":
            os.kill(os.getpid(), 11)
        if how == "slow":
            import time; time.sleep(60)
        if how == "memory":
            return len(bytearray(1200 * 2**20)) * 0
        if how == "control":
            sys.stdout.write(chr(27) + "[31m")
            return 0
        return 99 if how == "code" else 3
    return run

for how in ("bug", "signal", "slow", "memory", "control", "code", "polite"):
    fuzz._run = misbehave(how)
    print(how, bool(run_command(("x",), seconds=8)))
"""


@pytest.mark.slow
def test_what_is_wrong_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=100,
        check=True,
    )
    told = dict(line.split() for line in done.stdout.splitlines())
    assert told.pop("polite") == "False"
    assert told == dict.fromkeys(("bug", "signal", "slow", "memory", "control", "code"), "True")
