"""What all tests share: Hypothesis without deadlines, and the same examples on every CI run."""

from __future__ import annotations

import os

from hypothesis import settings

# A deadline measures the machine; a random example that fails belongs on a developer's desk, not in a colleague's CI.
settings.register_profile("llmperf", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("llmperf")
