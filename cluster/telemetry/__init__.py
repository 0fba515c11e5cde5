"""Metrics and status of a cluster."""
