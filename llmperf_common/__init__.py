"""Typed records, ids, config, schemas, store and ledger: what every other package shares.

Uses no GPU, no Ray and no torch. Importing the package loads only the standard library.
"""
