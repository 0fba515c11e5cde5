"""Shards and their tables: writing, reading and summarising."""
