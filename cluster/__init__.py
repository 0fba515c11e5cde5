"""Many machines: the Redis ledger, the Ray actors, the pool that restarts them, and their metrics.

Collecting on one machine does not need this package: ``workers/collect/loop.py`` takes any
``Ledger``.
"""
