"""Typed records, ids, config, schemas, store and ledger: what every other package shares.

Owns no GPU, no Ray and no torch; importing it loads only the standard library.
"""
