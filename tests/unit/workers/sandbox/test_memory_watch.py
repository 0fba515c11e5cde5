"""A process that uses too much memory ends at once and says why, also while native code runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, time
from workers.sandbox.memory_watch import end_above
end_above(256 * 2**20)
size = int(sys.argv[1]) * 2**20
libc = ctypes.CDLL(None)  # its calls release Python's lock, as OpenCL's do
libc.malloc.restype = ctypes.c_void_p
address = libc.malloc(ctypes.c_size_t(size))
if sys.argv[2] == "fill":
    libc.memset(ctypes.c_void_p(address), 1, ctypes.c_size_t(size))
time.sleep(1)
print("went on")
"""


@pytest.mark.parametrize(
    ("mib", "what", "ends"),
    [(400, "fill", True), (100, "fill", False), (4000, "reserve", False)],
)
def test_only_memory_that_is_used_counts(mib: int, what: str, *, ends: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(mib), what], capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if ends else 0), done.stderr
    assert done.stdout == ("" if ends else "went on\n")
    assert done.stderr == ("the process needs more than 256 MiB of memory\n" if ends else "")
