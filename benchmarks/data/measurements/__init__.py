"""Measurements without sources: compact tables of a dataset, and the dataset back from them and the public corpus."""
