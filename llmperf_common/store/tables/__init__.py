"""Shards and the tables in them: writing, reading, summaries."""
