"""Limits of a process are only ever lowered."""

from __future__ import annotations

import subprocess
import sys

import pytest


def after(ulimit: str, code: str) -> str:
    """Return what ``code`` prints under a limit that the user has set."""
    command = f'ulimit {ulimit}; exec "$0" -c "$1"'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("ulimit", "limit"), [("-v 1000000", "1024000000"), ("-Sv 1000000", "1024000000")]
)
def test_a_lower_limit_on_memory_stays(ulimit: str, limit: str) -> None:
    code = (
        "import resource; from workers.sandbox.address_space import bound_growth, memory_limit_text\n"
        "bound_growth(4 * 2**30)\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0]); assert '976 MiB' in memory_limit_text()"
    )
    assert after(ulimit, code) == limit


def test_a_higher_limit_on_memory_is_lowered() -> None:
    code = (
        "import resource; from workers.sandbox.address_space import bound_growth\n"
        "bound_growth(2**30); print(resource.getrlimit(resource.RLIMIT_AS)[1] < 3 * 2**30)"
    )
    assert after("-v 8000000", code) == "True"


def test_a_child_starts_under_a_limit_on_file_sizes() -> None:
    code = (
        "import os, socket, sys; from workers.sandbox.child_main import serve\n"
        "ours, theirs = socket.socketpair()\n"
        "sys.argv = ['child', str(os.dup(theirs.fileno())), str(os.getppid()), 'x']\n"
        "serve(lambda channel, argument: print(argument))"
    )
    assert after("-f 1000", code) == "x"
