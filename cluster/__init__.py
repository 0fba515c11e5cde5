"""Many machines: the Redis ledger, the Ray actors and their monitoring will live here.

Nothing yet: collecting on one machine needs none of it. ``workers/loop.py`` already takes any ``Ledger``.
"""
