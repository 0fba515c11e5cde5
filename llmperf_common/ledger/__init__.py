"""The ledger: who works on which task during a run, and which shard holds the task's result.

``protocol.py`` states what every ledger guarantees, ``sqlite.py`` is the ledger in a file, and
``attach.py`` opens or rebuilds a ledger.
"""
