"""Many machines: the Redis ledger, the Ray actors, the pool that restarts them, and their metrics.

Collecting on one machine needs none of this. ``workers/collect/loop.py`` takes any ``Ledger``.
"""
