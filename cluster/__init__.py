"""Many machines: the Redis ledger, the Ray actors, the pool that keeps them at work, and their metrics.

Collecting on one machine needs none of it. ``workers/collect/loop.py`` takes any ``Ledger``.
"""
