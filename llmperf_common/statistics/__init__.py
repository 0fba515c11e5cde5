"""Metrics, intervals, bootstrap and splits."""
