"""Collect on many machines: the Redis ledger, the Ray actors, their pool, their metrics.

Collecting on one machine does not need Ray or Redis: the collect loop (``workers/collect/loop.py``)
then uses a ledger in a SQLite file.
"""
