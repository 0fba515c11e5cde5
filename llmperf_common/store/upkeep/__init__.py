"""Upkeep of a dataset: verify, repair, compact, sweep, merge, rebuild."""
