"""Programs that measure. ``RESULTS.md`` has claims, ``reports/`` methods and ``raw/`` rows."""

import os

# pyopencl reads this variable once, at its first import. No cache, because loading a cached binary
# is not a build, and because the cache fails with Intel's runtime.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
