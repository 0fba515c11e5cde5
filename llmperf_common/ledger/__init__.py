"""Who works on which task, and which shard holds its result, while a run goes on.

``protocol.py`` is what every ledger promises, ``sqlite.py`` the embedded one; ``attach.py`` opens or rebuilds it.
"""
