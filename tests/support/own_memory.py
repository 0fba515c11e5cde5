"""The peak memory of a piece of Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_PEAK = """
import re
text = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", text)[1]) * 1024)
"""


def peak_bytes(code: str, *arguments: object) -> int:
    """Run ``code`` with ``sys.argv[1:]`` and return the peak of its process; it must not fail.

    ``ru_maxrss`` would include the memory of this process at the fork.
    """
    done = subprocess.run(
        [sys.executable, "-c", code + _PEAK, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.splitlines()[-1])
