"""Programs that measure; what they found is in ``RESULTS.md``."""

import os

# Read once, when pyopencl is first imported: a cached binary is no build, and with Intel's runtime the cache fails.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
