"""The wheel that users install, built from a copy, because building leaves a folder ``build/``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("llmperf", "llmperf_common", "workers", "cluster", "trainer", "configs")
"""The top-level packages that the wheel installs."""
BUILD_FILES = ("pyproject.toml", "setup.py")
_DOCUMENTS = ("README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """Build the wheel into ``folder`` without network and git; return the wheel's path."""
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        for name in (*PACKAGES, "kernels"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
        for name in (*BUILD_FILES, *_DOCUMENTS):
            shutil.copy(REPOSITORY / name, source)
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", made, *options],
            check=True,
            capture_output=True,
            timeout=100,
        )
    (built,) = folder.glob("*.whl")
    return built
