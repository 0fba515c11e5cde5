"""Keeping a dataset whole: verify, repair, compact, sweep, merge, rebuild."""
