"""Versions of a dataset: manifests, segments, epochs and the run's record."""
