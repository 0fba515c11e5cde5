"""A fork that ends inside a ``with`` block of its parent takes nothing from the parent."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, sys
from pathlib import Path
from llmperf_common.ledger.holder import this_process
from workers.sandbox.own_stack import OwnStack
from workers.sandbox.scratch import scratch_folder

with scratch_folder(this_process()) as alone, OwnStack() as stack:
    inside = stack.enter_context(scratch_folder(this_process()))
    stack.callback(print, "closed", flush=True)
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    print(alone.is_dir(), inside.is_dir(), flush=True)
print(alone.exists(), inside.exists())
"""


def test_a_fork_that_ends_in_a_callback_takes_nothing_from_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["True True", "closed", "False False"]
    assert done.stderr == ""
