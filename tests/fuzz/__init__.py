"""Fuzzing the front end: ``python -m tests.fuzz --sources 10000 --seed 0 --seconds 3600``."""
