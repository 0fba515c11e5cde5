"""``python -m tests.stub_icd aborting|hanging COMMAND…``: run a command beside a PoCL that does so."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.stub_icd import MODES, build_stub
from workers.discovery.candidates import POCL_VARIABLE


def main(arguments: list[str]) -> int:
    """Return the command's exit code."""
    if len(arguments) < 2 or arguments[0] not in MODES:
        sys.exit(f"usage: python -m tests.stub_icd {'|'.join(MODES)} COMMAND…")
    with tempfile.TemporaryDirectory() as folder:
        icd = build_stub(arguments[0], Path(folder))
        environment = {**os.environ, POCL_VARIABLE: str(icd)}
        return subprocess.run(arguments[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
