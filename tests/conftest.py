"""What all tests share: Hypothesis without deadlines, and the same examples on every CI run."""

from __future__ import annotations

import os

from hypothesis import settings

# Read once, when pyopencl is first imported. Its cache fails with Intel's runtime, and a cached binary is no build.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

# A deadline measures the machine; a random example that fails belongs on a developer's desk, not in a colleague's CI.
settings.register_profile("llmperf", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("llmperf")
