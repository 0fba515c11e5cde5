"""Timing one launch: readings, stop rule, checks, and the lock on the device."""
