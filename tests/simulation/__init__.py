"""A deterministic simulator of collectors: the shipped store, SQLite and loop code under crashes and wipes.

``schedule.py`` runs one schedule (a seed, or a list of decisions), ``search.py`` many; ``oracle.py`` is what must
always hold, ``planted.py`` the bugs that prove the search finds something. ``python -m tests.simulation --help``.
"""
