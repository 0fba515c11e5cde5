"""Programs that measure; ``RESULTS.md`` has the claims, ``reports/`` the methods, ``raw/`` the rows."""

import os

# Read once, when pyopencl is first imported: a cached binary is no build, and with Intel's runtime the cache fails.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
