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
        if how == "long":
            sys.stdout.write("x" * 2**20)
            return 0
        if how == "endless":
            while True: os.write(1, b"x" * 2**16)
        if how == "control":
            sys.stdout.write(chr(27) + "[31m")
            return 0
        return 99 if how == "code" else 3
    return run

for how in sys.argv[1:]:
    fuzz._run = misbehave(how)
    print(how, run_command(("x",), seconds=8).partition("\\n")[0])
"""


def found_wrong(*hows: str) -> dict[str, str]:
    """Return for each misbehaviour what the fuzzer says; empty where nothing is wrong."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *hows],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=100,
        check=True,
    )
    return {
        how: says for how, _, says in (line.partition(" ") for line in done.stdout.splitlines())
    }


@pytest.mark.slow
def test_what_is_wrong_is_found() -> None:
    wrong = ("bug", "signal", "slow", "memory", "control", "code")
    found = found_wrong(*wrong, "polite")
    assert found.pop("polite") == ""
    assert [how for how, says in found.items() if says] == list(wrong)


def test_a_long_output_is_read_while_the_command_runs() -> None:
    found = found_wrong("long", "endless")
    assert found == {"long": "", "endless": "writes more than 16 MiB"}
