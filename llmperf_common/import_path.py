"""The folders from which child processes import modules.

Children run with Python's option ``-P``, so they do not import from the working directory, where a
stranger's ``json.py`` may lie.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SITE_FOLDERS = ("site-packages", "dist-packages")


def path_of_packages() -> dict[str, str]:
    """Return ``PYTHONPATH`` for a child if it needs this variable to find LLMPerf's packages.

    It does if LLMPerf is not installed and this process found the packages through ``sys.path``,
    for example with ``python -m llmperf`` in a clone.
    """
    folder = str(Path(__file__).resolve().parents[1])
    found = (os.path.realpath(entry or os.curdir) for entry in sys.path)
    if Path(folder).name in _SITE_FOLDERS or folder not in found:
        return {}
    others = [one for one in [os.environ.get("PYTHONPATH")] if one]
    return {"PYTHONPATH": os.pathsep.join([folder, *others])}
